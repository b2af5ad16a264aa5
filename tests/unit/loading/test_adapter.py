"""Adapters from the folder to the model: precision, conversion, tokenizers, commands, and what is refused.

test_adapters.py compares merged weights with PEFT's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from safetensors.numpy import load_file, save_file

from speculative_decoding import CheckpointError, InputError, load
from speculative_decoding.cli import main as main_command
from speculative_decoding.loading import manifest
from speculative_decoding.loading.conversion import convert
from speculative_decoding.loading.draft_head import write_draft_head
from speculative_decoding.loading.load import Storage, open_model
from speculative_decoding.models.base import EncoderDecoder
from tests.support.checkpoint_files import torch_file
from tests.support.hub import GATED, FakeHub
from tests.support.tiny import CONFIG, TOKENIZER, save_hugging_face, tiny_head, tiny_model

MODULE = "encoder.block.0.layer.0.SelfAttention.q"
PREFIX = "base_model.model."
SIZES = {"d_model": 64, "d_ff": 64, "d_kv": 32}
LORA = {"peft_type": "LORA", "base_model_name_or_path": "someone/base", "r": 2, "lora_alpha": 5, "bias": "none"}


def matrices(module: str = MODULE, shape: tuple[int, int] = (64, 64), seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    down, up = (rng.standard_normal(size).astype(np.float32) for size in ((2, shape[1]), (shape[0], 2)))
    return {f"{PREFIX}{module}.lora_A.weight": down, f"{PREFIX}{module}.lora_B.weight": up}


def write_adapter(folder: Path, tensors: Mapping[str, Any], form: str = "safetensors", **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(LORA | changes))
    if form == "bin":
        (folder / "adapter_model.bin").write_bytes(torch_file("zip", tensors))
    else:
        save_file(dict(tensors), folder / "adapter_model.safetensors")
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_hugging_face(tiny_model(**SIZES), tmp_path / "base", CONFIG | SIZES)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", matrices())


def merged_by_hand(base: Path, folder: Path, tensors: Mapping[str, Any], dtype: str = "float32") -> Path:
    """Write a copy of the base with alpha / r * B A added in float32."""
    shutil.copytree(base, folder)
    weights = load_file(base / "model.safetensors")
    down, up = tensors.values()
    weights[f"{MODULE}.weight"] = weights[f"{MODULE}.weight"].astype(np.float32) + 2.5 * up @ down
    save_file(weights, folder / "model.safetensors")
    return folder


def parameters(model: EncoderDecoder) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def assert_same(first: EncoderDecoder, second: EncoderDecoder, tolerance: float = 0.0) -> None:
    ours, theirs = parameters(first), parameters(second)
    assert ours.keys() == theirs.keys()
    for path, array in ours.items():
        assert array.dtype == theirs[path].dtype
        assert np.abs(np.array(array.astype(mx.float32)) - theirs[path].astype(mx.float32)).max() <= tolerance, path


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_an_adapter_is_added_to_the_weights(base: Path, tmp_path: Path, form: str) -> None:
    adapter = write_adapter(tmp_path / "adapter", matrices(), form)
    expected = load(merged_by_hand(base, tmp_path / "merged", matrices())).model
    assert_same(load(base, adapter=adapter).model, expected, 1e-5)
    converted = convert(str(base), tmp_path / "converted", Storage("float32"), adapter=str(adapter))
    assert_same(load(converted).model, expected, 1e-5)
    plain = convert(str(base), tmp_path / "plain", Storage("float32"))
    assert_same(load(plain, adapter=adapter).model, expected, 1e-5)


def test_weights_are_added_before_they_are_rounded(base: Path, tmp_path: Path) -> None:
    """A base of 1 + 1/256 in bfloat16 and updates of -1/256 give exactly 1, which rounding first would not."""
    path = base / "model.safetensors"
    tensors = {name: mx.array(value).astype(mx.bfloat16) for name, value in load_file(path).items()}
    tensors[f"{MODULE}.weight"] = mx.full((64, 64), 1 + 1 / 128, mx.bfloat16)
    mx.save_safetensors(str(path), tensors)
    up = np.zeros((64, 2), np.float32)
    up[:, 0] = 1 / 512
    ones = np.ones((2, 64), np.float32)
    update = {f"{PREFIX}{MODULE}.lora_A.weight": ones, f"{PREFIX}{MODULE}.lora_B.weight": up}
    adapter = write_adapter(tmp_path / "adapter", update, lora_alpha=2)
    name = "encoder.layers.0.self_attention.qkv.weight"
    exact = 1 + 1 / 128 + 1 / 512
    assert parameters(load(base, adapter=adapter, dtype="float32").model)[name][0, 0].item() == exact
    rounded = mx.array(exact).astype(mx.bfloat16).item()
    assert parameters(load(base, adapter=adapter, dtype="bfloat16").model)[name][0, 0].item() == rounded


def test_quantizing_sees_the_merged_weights(base: Path, adapter: Path, tmp_path: Path) -> None:
    merged = merged_by_hand(base, tmp_path / "merged", matrices())
    expected = load(merged, quantize=8).model
    assert_same(load(base, adapter=adapter, quantize=8).model, expected, 1e-4)
    converted = convert(str(base), tmp_path / "converted", Storage("float32", 8), adapter=str(adapter))
    assert_same(load(converted).model, load(base, adapter=adapter, quantize=8).model)


def test_a_quantized_folder_is_refused_with_the_way_out(base: Path, adapter: Path, tmp_path: Path) -> None:
    quantized = convert(str(base), tmp_path / "quantized", Storage("float32", 4))
    for use in (
        lambda: load(quantized, adapter=adapter),
        lambda: convert(str(quantized), tmp_path / "x", adapter=str(adapter)),
    ):
        with pytest.raises(InputError, match=r"which is quantized; convert .* --adapter \S+ --quantize BITS"):
            use()
    assert not (tmp_path / "x").exists()


def test_a_converted_folder_records_its_adapter(base: Path, adapter: Path, tmp_path: Path) -> None:
    converted = convert(str(base), tmp_path / "converted", adapter=str(adapter))
    again = convert(str(converted), tmp_path / "again", Storage("float32"))
    for folder in (converted, again):
        assert manifest.read(folder)["adapter"]["name"] == "adapter"
    handles = [open_model(base, adapter=adapter), open_model(converted), open_model(again)]
    assert len({handle.model.adapter for handle in handles}) == 1
    assert open_model(base).model.adapter is None


def test_the_adapters_tokenizer_is_used_if_it_has_one(base: Path, adapter: Path, tmp_path: Path) -> None:
    (adapter / "tokenizer_config.json").write_text("{}")  # settings alone are no tokenizer
    assert load(base, adapter=adapter).tokenizer.vocabulary.pieces[2] == "a"
    words = {"<unk>": 0, "</s>": 1, "b": 2}
    own = TOKENIZER | {"model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}}
    (adapter / "tokenizer.json").write_text(json.dumps(own))
    assert load(base, adapter=adapter).tokenizer.vocabulary.pieces[2] == "b"
    assert load(convert(str(base), tmp_path / "out", adapter=str(adapter))).tokenizer.vocabulary.pieces[2] == "b"


def test_a_larger_vocabulary_of_the_adapter_is_used(base: Path, tmp_path: Path) -> None:
    table = np.random.default_rng(1).standard_normal((30, 64)).astype(np.float32)
    tensors = matrices() | {f"{PREFIX}{name}.weight": table + i for i, name in enumerate(("shared", "lm_head"))}
    adapter = write_adapter(tmp_path / "adapter", tensors)
    model = load(base, adapter=adapter).model
    assert model.config.vocab_size == 30 and np.array_equal(model.embedding.weight, table)
    assert np.array_equal(model.head.weight, table + 1)
    assert_same(load(convert(str(base), tmp_path / "out", Storage("float32"), adapter=str(adapter))).model, model)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"peft_type": "IA3"}, "PEFT method 'IA3'"),
        ({"peft_type": None}, "PEFT method None"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "LoRA biases .bias 'lora_only'"),
        ({"lora_bias": True}, "LoRA biases"),
        ({"layer_replication": [[0, 1], [0, 1]]}, "layer replication"),
        ({"target_parameters": ["x"]}, "LoRA of parameters"),
        ({"alora_invocation_tokens": [3]}, "activated LoRA"),
        ({"kasa_config": {"r": 1}}, "kasa_config"),
        *(({"init_lora_weights": kind}, kind) for kind in ("pissa_niter_4", "olora", "corda", "loftq")),
    ],
    ids=str,
)
def test_other_methods_are_refused_by_name(base: Path, tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    adapter = write_adapter(tmp_path / "adapter", matrices(), **changes)
    with pytest.raises(InputError, match=named) as caught:
        open_model(base, adapter=adapter)
    assert "is not supported" in str(caught.value) and "merge_and_unload" in str(caught.value)


A, B = matrices()
ROWS = {f"{PREFIX}shared.token_adapter.trainable_tokens_delta": np.ones((1, 64))}
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another module": (matrices("encoder.block.7.layer.0.SelfAttention.q"), {}, r"block\.7.* fits no tensor of"),
    "a tensor without a module": ({f"{PREFIX}unknown.weight": np.ones(3)}, {}, r"unknown\.weight' fits no tensor"),
    "DoRA": (matrices() | {f"{PREFIX}{MODULE}.lora_magnitude_vector": np.ones(64)}, {}, "DoRA is not supported"),
    "a bias": (matrices() | {f"{PREFIX}{MODULE}.lora_B.bias": np.ones(64)}, {}, "lora_B.bias.*is not supported"),
    "other sizes": (matrices(shape=(64, 32)), {}, r"fits a weight of shape \(64, 32\), but the base's .* \(64, 64\)"),
    "one matrix": ({A: matrices()[A]}, {}, "has no counterpart"),
    "two ranks": (matrices() | {A: np.ones((3, 64), np.float32)}, {}, "do not fit together"),
    "another rank": (matrices(), {"r": 3}, "has rank 3, but its tensors have 2"),
    "alpha": (matrices(), {"lora_alpha": "x"}, "'lora_alpha' must be a number"),
    "patterns": (matrices(), {"alpha_pattern": ["q"]}, "'alpha_pattern' must be an object"),
    "an alpha pattern": (matrices(), {"alpha_pattern": {"q": "x"}}, "alpha_pattern of q"),
    "a broken pattern": (matrices(), {"rank_pattern": {"(q": 2}}, "pattern .*cannot be used"),
    "a slow pattern": (matrices(), {"alpha_pattern": {"(.*.*)*x": 2}}, "too complex"),
    "many wildcards": (matrices(), {"alpha_pattern": {".*a.*b.*c.*d.*x": 2}}, "too complex"),
    "modules": (matrices(), {"modules_to_save": "lm_head"}, "'modules_to_save' must be a list"),
    "rows without indices": (ROWS, {}, "adapter_config.json has no token indices for"),
    "a row that the base lacks": (ROWS, {"trainable_token_indices": [24]}, "is for a row that .* does not have"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_adapter_is_refused_before_weights_load(base: Path, tmp_path: Path, case: str) -> None:
    tensors, changes, message = WRONG[case]
    tensors = {name: each.astype(np.float32) for name, each in tensors.items()}
    adapter = write_adapter(tmp_path / "adapter", tensors, **changes)
    with pytest.raises(InputError, match=message) as caught:
        open_model(base, adapter=adapter)
    assert "\n" not in str(caught.value)


def test_a_folder_without_an_adapter_is_named(base: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"adapter: \S*base: has no adapter_config.json"):
        load(base, adapter=base)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match="has no weights"):
        load(base, adapter=adapter)
    (adapter / "adapter_model.bin").write_bytes(b"\x80\x02cposix\nsystem\n.")
    with pytest.raises(CheckpointError, match="adapter_model.bin"):
        load(base, adapter=adapter)


def test_a_wrong_name_of_an_adapter_is_reported_as_one(base: Path, adapter: Path, web: FakeHub) -> None:
    """The option is named, and the way out is one for adapters: convert.py --model cannot convert them."""

    def message(name: str) -> str:
        with pytest.raises(InputError) as caught:
            load(base, adapter=name)
        assert caught.value.field == "adapter"
        return str(caught.value)

    assert message(f"{adapter}s").endswith(f"did you mean {adapter}?")
    assert "name the adapter on the Hub, org/lora" in message("https://huggingface.co/org/lora/tree/main")
    assert "name the folder that PEFT saved" in message("./nothing/here")
    assert "log in with" in message("org/private")
    web.refusal = (503, {})
    assert "status 503" in (offline := message("org/lora")) and "convert.py" not in offline
    web.refusal = (403, GATED)
    assert "accept the licence" in message("org/gated")


def test_an_adapter_named_as_a_model_is_answered_with_both_names(
    base: Path, adapter: Path, tmp_path: Path, web: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is downloaded because a file names it."""
    (adapter / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    message = rf"is an adapter of someone/base, not a model; .*--model someone/base --adapter {adapter}"
    uses = (lambda: load(adapter), lambda: convert(str(adapter), tmp_path / "out"), lambda: load(base, draft=adapter))
    for use in uses:
        with pytest.raises(InputError, match=message):
            use()
    assert main_command.main(["--adapter", str(adapter), "a"]) == 2
    assert "--model" in capsys.readouterr().err
    (adapter / "config.json").write_text((base / "config.json").read_text())
    with pytest.raises(InputError, match=message):
        load(adapter)
    shutil.copy(base / "model.safetensors", adapter)
    assert load(adapter).model.adapter is None  # a model with remains of its training
    assert web.requests == []


def test_commands_merge_an_adapter(
    base: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"<unk>": 0, "</s>": 1} | {f"w{i}": i for i in range(2, 24)}
    tokenizer = TOKENIZER | {"model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}}
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.rmtree(adapter)
    write_adapter(adapter, matrices("decoder.block.0.layer.2.DenseReluDense.wo"))
    stats = tmp_path / "stats.json"
    more = ["-m", "12", "--stats-json", str(stats), "w5 w9 w7"]
    assert main_command.main(["--model", str(base), "--adapter", str(adapter), *more]) == 0
    found = capsys.readouterr()
    assert f"with adapter {adapter}" in found.err
    assert json.loads(stats.read_text())["adapter"] == str(adapter)
    expected, plain = (load(base, adapter=each).generate("w5 w9 w7", max_tokens=12).text for each in (adapter, None))
    assert found.out.strip() == expected.strip() != plain.strip()


def test_a_draft_head_of_the_base_does_not_belong_to_the_merged_model(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    other = write_adapter(tmp_path / "other", matrices(seed=1))
    for trained_for in (None, adapter):
        target = load(base, adapter=trained_for).model
        head = tmp_path / f"head-{trained_for is None}"
        write_draft_head(head, tiny_head(target), target, mx.float32)
        assert load(base, adapter=trained_for, draft=head)
        for named in {None, adapter, other} - {trained_for}:
            with pytest.raises(InputError, match="it was trained for the model with(out the| an| another) adapter"):
                load(base, adapter=named, draft=head)


def test_base_and_adapter_may_be_on_the_hub(base: Path, adapter: Path, web: FakeHub) -> None:
    web.add("org/base-model", base)
    web.add("org/its-adapter", adapter)
    assert_same(load("org/base-model", adapter="org/its-adapter").model, load(base, adapter=adapter).model)
    converted = convert("org/base-model", Path("out"), Storage("float32"), adapter="org/its-adapter")
    assert manifest.read(converted)["adapter"]["name"] == "org/its-adapter"
    with pytest.raises(InputError, match="org/its-adapter is an adapter of someone/base, not a model"):
        load("org/its-adapter")
