"""Converted models equal their sources. Errors name the problem and leave no partial folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from speculative_decoding import CheckpointError, InputError, checkpoints, load
from speculative_decoding.checkpoints.npz import write_npz
from speculative_decoding.loading import manifest
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage
from tests.support.checkpoint_files import gguf_file, t5_arrays, torch_file
from tests.support.hub import FakeHub
from tests.support.paths import GOLDENS
from tests.support.tiny import TOKENIZER, source_for, whisper_tokenizer

FAMILIES = sorted(path.parent.name for path in GOLDENS.glob("*/model.safetensors"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path, "t5")


def make_source(tmp_path: Path, family: str) -> Path:
    folder = tmp_path / "hf" / family
    shutil.copytree(GOLDENS / family, folder)
    config = json.loads((folder / "config.json").read_text())
    tokenizer = whisper_tokenizer(config) if config["model_type"] == "whisper" else TOKENIZER
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def shard(folder: Path) -> None:
    """Split model.safetensors in two, as the Hub does with large models."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file_name, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file_name)
    weight_map = {name: file_name for file_name, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


@pytest.mark.filterwarnings("ignore:.*num_beams . is ignored")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_equals_its_source(family: str, tmp_path: Path) -> None:
    folder = make_source(tmp_path, family)
    output = convert(str(folder), tmp_path / "out", Storage("float32"))
    original, converted = load(folder).model, load(output).model
    tokens = mx.array([[3, 4, 1]])
    source = source_for(original)
    logits = [m.decode(tokens, m.make_cache(m.encode_rows([source])[0])) for m in (original, converted)]
    assert mx.array_equal(*logits)


@pytest.mark.parametrize("family", ["bart", "t5", "whisper"])
def test_torch_files_are_converted_as_safetensors(family: str, tmp_path: Path) -> None:
    folder = make_source(tmp_path, family)
    output = convert(str(folder), tmp_path / "out", Storage("float32"))
    as_torch(folder)
    from_torch = convert(str(folder), tmp_path / "from_torch", Storage("float32"))
    assert (from_torch / "weights.npz").read_bytes() == (output / "weights.npz").read_bytes()


def as_torch(folder: Path, form: str = "zip") -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(torch_file(form, tensors))
    (folder / "model.safetensors").unlink()


def as_sharded_torch(folder: Path) -> None:
    shard(folder)
    for path in folder.glob("*.safetensors"):
        name = path.name.replace("model-", "pytorch_model-").replace(".safetensors", ".bin")
        (folder / name).write_bytes(torch_file("zip", load_file(path)))
        path.unlink()
    index = folder / "model.safetensors.index.json"
    text = index.read_text().replace("model-", "pytorch_model-").replace(".safetensors", ".bin")
    (folder / "pytorch_model.bin.index.json").write_text(text)
    index.unlink()


def as_npz(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    write_npz(folder / "weights.npz", ((name, mx.array(tensor)) for name, tensor in tensors.items()))
    (folder / "model.safetensors").unlink()


FORMATS: dict[str, Callable[[Path], None]] = {
    "sharded safetensors": shard,
    "legacy .bin": lambda folder: as_torch(folder, "legacy"),
    "sharded .bin": as_sharded_torch,
    "npz": as_npz,
}


@pytest.mark.parametrize("rewrite", FORMATS.values(), ids=FORMATS.keys())
def test_every_format_converts_to_the_same_bytes(rewrite: Callable[[Path], None], source: Path, tmp_path: Path) -> None:
    """tests/unit/checkpoints/test_gguf.py compares GGUF, which has other tensor names."""
    expected = (convert(str(source), tmp_path / "expected") / "weights.npz").read_bytes()
    rewrite(source)
    assert (convert(str(source), tmp_path / "out") / "weights.npz").read_bytes() == expected


def test_a_gguf_file_converts_to_the_same_model(tmp_path: Path) -> None:
    arrays = t5_arrays()
    folder = tmp_path / "gguf"
    folder.mkdir()
    (folder / "any-name.gguf").write_bytes(gguf_file(arrays))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    converted = checkpoints.read(convert(str(folder), tmp_path / "out", Storage("float32")))
    assert all(np.array_equal(np.array(converted[name]), arrays[name]) for name in converted)
    assert load(tmp_path / "out").model.config.vocab_size == arrays["shared.weight"].shape[0]
    (folder / "second.gguf").touch()
    with pytest.raises(CheckpointError, match="holds 2 .gguf files"):
        convert(str(folder), tmp_path / "other")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_stored_in_the_requested_type(dtype: str, source: Path, tmp_path: Path) -> None:
    output = convert(str(source), tmp_path / "out", Storage(dtype))
    converted, original = checkpoints.read(output), checkpoints.read(source)
    assert converted.keys() <= original.keys()
    for name in converted:
        expected = original[name].astype(getattr(mx, dtype))
        assert converted[name].dtype == expected.dtype == converted.info(name).dtype
        assert mx.array_equal(converted[name], expected)
    if dtype != "bfloat16":  # numpy has no bfloat16
        by_numpy = np.load(output / "weights.npz")
        assert all(np.array_equal(by_numpy[name], np.array(converted[name])) for name in converted)


def test_each_needed_tensor_is_written_once(tmp_path: Path) -> None:
    folder = make_source(tmp_path, "flan-t5")  # its file has copies of the embedding
    names = list(checkpoints.read(convert(str(folder), tmp_path / "out")))
    assert len([name for name in names if "embed" in name or name == "shared.weight"]) == 1


def test_a_damaged_folder_is_not_loaded(source: Path, tmp_path: Path) -> None:
    output = convert(str(source), tmp_path / "out")
    assert manifest.verify(output) == 3 + (source / "generation_config.json").exists()
    (output / "tokenizer.json").write_bytes((output / "tokenizer.json").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: wrong size"):
        load(output)


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["decoder.block.1.layer.2.DenseReluDense.wo.weight"]
    save_file(tensors, folder / "model.safetensors")


def other_architecture(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "wav2vec2"}))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (drop_tensor, "decoder.block.1.layer.2.DenseReluDense.wo.weight' is missing"),
        (other_architecture, "unsupported model_type 'wav2vec2'"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights found"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
    ],
)
def test_a_damaged_source_is_reported_and_nothing_is_written(
    damage: Callable[[Path], object], named: str, source: Path, tmp_path: Path
) -> None:
    damage(source)
    with pytest.raises(InputError, match=named):
        convert(str(source), tmp_path / "out" / "model")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_conversion_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def interrupt(name: str, done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(str(source), tmp_path / "out" / "model", progress=interrupt)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_existing_folder_is_replaced_only_with_force(source: Path, tmp_path: Path) -> None:
    output = convert(str(source), tmp_path / "out")
    with pytest.raises(InputError, match="or replace it with force"):
        convert(str(source), output)
    convert(str(source), output, Storage("float32"), force=True)
    assert checkpoints.read(output).info("shared.weight").dtype == mx.float32


def test_a_full_disk_is_reported_before_writing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match="are free"):
        convert(str(source), tmp_path / "out" / "model")
    assert not (tmp_path / "out").exists()


def test_progress_ends_at_the_total(source: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert(str(source), tmp_path / "out", progress=lambda name, done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1][0] == seen[-1][1] > 0


def test_a_local_folder_never_touches_the_network(source: Path, tmp_path: Path, web: FakeHub) -> None:
    convert(str(source), tmp_path / "out")
    assert web.requests == []


def test_a_revision_is_converted_and_recorded(source: Path, web: FakeHub) -> None:
    web.add("org/tiny", source).branches = ("v1",)
    assert manifest.read(convert("org/tiny", revision="v1"))["revision"] == "v1"
    with pytest.raises(InputError, match="revision: v1 has no effect on the local folder"):
        convert(str(source), Path("out"), revision="v1")


def test_a_name_on_the_hub_is_converted_again_although_models_has_a_folder_of_it(source: Path, web: FakeHub) -> None:
    """A guard: other names of folders in models/ mean these folders."""
    web.add("t5-small", source)
    for force in (False, True):
        assert convert("t5-small", force=force) == Path("models/t5-small")
    assert convert("models/t5-small", Path("copy")) == Path("copy")
    shutil.move("copy", "models/mine")
    assert manifest.read(convert("mine", Path("again")))["source"] == "mine"


@pytest.mark.parametrize("thing", ["thesis.txt", "chapters/", "weights.npz -> ", "no manifest"])
def test_a_folder_with_other_files_is_never_replaced(thing: str, source: Path, tmp_path: Path) -> None:
    output = convert(str(source), tmp_path / "out")
    if thing.endswith("/"):
        (output / thing).mkdir()
    elif thing == "no manifest":
        (output / "manifest.json").unlink()
    elif "->" in thing:
        (output / "weights.npz").rename(tmp_path / "elsewhere")
        (output / "weights.npz").mkdir()
    else:
        (output / thing).write_text("unrelated")
    before = {path.name for path in output.iterdir()}
    with pytest.raises(InputError, match="which no conversion wrote; name another folder"):
        convert(str(source), output, force=True)
    assert {path.name for path in output.iterdir()} == before and [*tmp_path.glob(".*")] == []


def test_the_source_a_link_and_a_file_are_never_replaced(source: Path, tmp_path: Path) -> None:
    source = convert(str(source), tmp_path / "source")
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "file").write_text("mine")
    for output, reason in (
        (source, "is the model to convert"),
        (tmp_path / "x" / ".." / "source", "is the model to convert"),
        (tmp_path / "link", "is a link"),
        (tmp_path / "file", "is a file"),
        (tmp_path / "x" / "new" / "..", "does not end with a folder name"),
        (Path(), "does not end with a folder name"),
    ):
        (tmp_path / "x").mkdir(exist_ok=True)
        for force in (False, True):
            with pytest.raises(InputError, match=reason):
                convert(str(source), output, Storage("bfloat16", 4), force=force)
    assert manifest.verify(source) and (tmp_path / "file").read_text() == "mine" and not any((tmp_path / "x").iterdir())


def test_an_empty_folder_is_replaced_with_force(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="already exists; name another folder, or replace it with force"):
        convert(str(source), tmp_path / "out")
    assert manifest.verify(convert(str(source), tmp_path / "out", force=True))
