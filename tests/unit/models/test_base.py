"""Tied tables, which a file stores once under any name, against what transformers 5.24 makes of every such file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from safetensors.numpy import load_file, save_file

from speculative_decoding import CheckpointError, checkpoints, load, models
from speculative_decoding.checkpoints import Checkpoint, TensorInfo
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.load import Storage
from speculative_decoding.models.base import checked_sources
from speculative_decoding.models.t5 import T5Config
from tests.support.checkpoint_files import torch_file
from tests.support.paths import GOLDENS
from tests.support.tiny import TOKENIZER, WHISPER, audio_frames, save_whisper, tiny_model, tiny_whisper

GOLDEN = json.loads((GOLDENS / "ties.json").read_text())
HEADS = {family: names[-1] for family, names in GOLDEN["names"].items()}
TABLE = "model.shared.weight"


class Tables(Checkpoint):
    """Tensors in memory."""

    def __init__(self, tensors: Mapping[str, mx.array]) -> None:
        super().__init__("memory", {name: TensorInfo(each.shape, each.dtype) for name, each in tensors.items()})
        self._tensors = tensors

    def __getitem__(self, name: str) -> mx.array:
        return self._tensors[name]


@cache
def golden_folder(family: str) -> tuple[dict[str, Any], dict[str, mx.array]]:
    """The config.json and the tensors of a golden model, without its tables."""
    raw = json.loads((GOLDENS / family / "config.json").read_text())
    stored = checkpoints.read(GOLDENS / family)
    names = [*GOLDEN["names"][family], "model.encoder.embed_tokens.weight"]
    return raw, {name: stored[name] for name in stored if name not in names}


def used_tables(family: str, flag: bool | None, values: Mapping[str, int]) -> tuple[list[int | None], bool | None]:
    """The values of source embedding, decoder embedding and head, and whether T5 scales the states."""
    raw, others = golden_folder(family)
    raw = {name: value for name, value in raw.items() if name not in ("tie_word_embeddings", "scale_decoder_outputs")}
    if flag is not None:
        raw["tie_word_embeddings"] = flag
    decoder = raw.get("decoder", raw)
    shape = decoder.get("vocab_size"), decoder.get("d_model", decoder.get("hidden_size"))
    tables = {name: mx.full(shape, value, mx.float32) for name, value in values.items()}
    config, checkpoint = models.find(raw).adapt(raw, Tables(others | tables))
    model = models.build(config, checkpoint)
    sources = checked_sources(model, checkpoint)
    embedding = sources["embedding.weight"]

    def value(names: tuple[str, ...]) -> int:
        return round(float(checkpoint[names[0]][0, 0]))

    source = None if family == "whisper" else value(sources.get("source_embedding.weight", embedding))
    scaled = model.config.scale_decoder_outputs if isinstance(model.config, T5Config) else None
    return [source, value(embedding), value(sources.get("head.weight", embedding))], scaled


@pytest.mark.parametrize("is_tied", [False, True])
def test_outputs_are_scaled_as_config_json_says_with_and_without_a_tied_head(is_tied: bool) -> None:
    unscaled, scaled = (tiny_model(tie_word_embeddings=is_tied, scale_decoder_outputs=scale) for scale in (False, True))
    hidden = mx.random.normal((1, 3, scaled.config.d_model), key=mx.random.key(0))
    expected = unscaled.final_states(hidden) * scaled.config.d_model**-0.5
    assert mx.allclose(scaled.final_states(hidden), expected)


ALIKE = {"mbart", "pegasus", "m2m_100"}  # read as BART


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=pytest.mark.slow) if each in ALIKE else each for each in HEADS]
)
def test_tables_are_those_of_transformers(family: str) -> None:
    """A file that leaves a table to chance in transformers is refused.

    Two differences: the first table alone stands in for both embeddings of a model without ties, as in transformers 4,
    and T5Gemma 2 with different embeddings is refused.
    """
    for families, flag, values, used, scaled in GOLDEN["cases"]:
        if family not in families:
            continue
        source, decoder, head = used
        if flag is False and family not in ("whisper", "t5gemma"):
            shared = values.get(GOLDEN["names"][family][0])
            source, decoder = (shared if each is None else each for each in (source, decoder))
        is_undefined = None in (decoder, head) or (source is None and family != "whisper")
        if is_undefined or (family == "t5gemma2" and source != decoder):
            with pytest.raises(CheckpointError, match="is missing|different tables"):
                used_tables(family, flag, values)
            continue
        found = used_tables(family, flag, values)
        assert found[0] == [source, decoder, head], (flag, values)
        if scaled is not None:
            assert found[1] == scaled, (flag, values)
        elif family == "mt5":
            assert found[1] is False


def write(path: Path, form: str, tensors: dict[str, Any]) -> None:
    if form == "bin":
        (path / "pytorch_model.bin").write_bytes(torch_file("zip", tensors))
    else:
        save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_a_tied_table_may_have_the_name_of_the_head(form: str, tmp_path: Path) -> None:
    """As `safetensors.torch.save_model` writes it: each tensor once, under the first name. Conversion keeps the model.

    A file with copies of the table, as old files have, gives the same model too.
    """
    tensors = load_file(GOLDENS / "bart" / "model.safetensors")
    only_head = {name: each for name, each in tensors.items() if "embed_tokens" not in name and name != TABLE}
    copies = {f"model.{stack}.embed_tokens.weight": tensors[TABLE] for stack in ("encoder", "decoder")}
    assert "lm_head.weight" in only_head and np.array_equal(tensors["lm_head.weight"], tensors[TABLE])
    folders = {}
    for name, content in (("original", tensors), ("head", only_head), ("copies", tensors | copies)):
        folders[name] = folder = tmp_path / name
        folder.mkdir()
        write(folder, form, content)
        (folder / "config.json").write_text((GOLDENS / "bart" / "config.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    folders["converted"] = convert(str(folders["head"]), tmp_path / "converted", Storage("float32"))
    parameters = [dict(tree_flatten(load(folder, dtype="float32").model.parameters())) for folder in folders.values()]
    for other in parameters[1:]:
        assert other.keys() == parameters[0].keys()
        assert all(mx.array_equal(array, other[path]).item() for path, array in parameters[0].items())


def test_a_head_that_differs_from_the_embedding_is_used(tmp_path: Path) -> None:
    """Whisper's `proj_out`, with and without the flag, converted too: logits are the states times the head."""
    config = WHISPER | {"tie_word_embeddings": True}
    folder = save_whisper(tiny_whisper(), tmp_path / "tied", config)
    tensors = load_file(folder / "model.safetensors")
    own = np.ascontiguousarray(tensors["model.decoder.embed_tokens.weight"][::-1])
    for flag in (True, False):
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": flag}))
        save_file(tensors | {"proj_out.weight": own}, folder / "model.safetensors")
        converted = convert(str(folder), tmp_path / f"converted-{flag}", Storage("float32"))
        for each in (folder, converted):
            model = load(each, dtype="float32").model
            cache = model.make_cache(model.encode_rows([audio_frames()])[0])
            states = model.states(mx.array([[41, 5, 9]]), cache)
            assert np.abs(np.array(model.logits(states)) - np.array(states) @ own.T).max() < 1e-5
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors | {"proj_out.weight": own[::-1].copy()}, folder / "model.safetensors")
    assert "head" not in load(folder).model


@pytest.mark.parametrize("family", ["t5", "umt5", "bart"])
def test_an_own_source_embedding_is_that_of_the_encoder_alone(family: str, tmp_path: Path) -> None:
    """Encoder states are those of a model tied to the one table, logits those of a model tied to the other."""
    tensors = load_file(GOLDENS / family / "model.safetensors")
    shared, *_ = (name for name in tensors if name.endswith("shared.weight"))
    source = shared.replace("shared", "encoder.embed_tokens")
    other = np.ascontiguousarray(tensors[shared][::-1])
    copies = [name for name in GOLDEN["names"][family] if name != shared]
    tensors = {name: each for name, each in tensors.items() if name not in copies}
    models_of = {}
    for name, changes in (("first", {}), ("second", {shared: other}), ("both", {source: other})):
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors | changes, folder / "model.safetensors")
        (folder / "config.json").write_text((GOLDENS / family / "config.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        models_of[name] = load(folder, dtype="float32").model
    converted = convert(str(tmp_path / "both"), tmp_path / "converted", Storage("float32"))
    for both in (models_of["both"], load(converted, dtype="float32").model):
        tokens, outputs = mx.array([[5, 9, 3, 7]]), mx.array([[2, 4, 8]])
        encoded = both.encode(tokens)
        assert mx.array_equal(encoded, models_of["second"].encode(tokens)).item()
        assert not mx.array_equal(encoded, models_of["first"].encode(tokens)).item()
        found, expected = (each.logits(each.teacher_forced(outputs, encoded)) for each in (both, models_of["first"]))
        assert mx.array_equal(found, expected).item()
