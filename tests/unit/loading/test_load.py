"""A model is loaded in one dtype, which depends on its checkpoint and the device, with only the modules it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from speculative_decoding import checkpoints
from speculative_decoding.loading.load import BUNDLED, Storage, build_model, default_dtype, open_model, read_folder
from tests.parity.test_families import FOLDERS
from tests.support.metal import pretend_gpu
from tests.support.tiny import TOKENIZER, whisper_tokenizer

M1, M2, M3 = "applegpu_g13g", "applegpu_g14s", "applegpu_g15d"
NO_FLOAT16 = ("m2m_100", "mbart", "pegasus", "t5gemma", "t5gemma-unequal", "t5gemma2")


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Disable compilation, because every dtype would compile separate kernels."""
    mx.disable_compile()  # type: ignore[no-untyped-call]
    yield
    mx.enable_compile()  # type: ignore[no-untyped-call]


def store_mixed(source: Path, folder: Path, dtype: mx.Dtype) -> Path:
    """Copy a model with most bytes in `dtype`, and with norms, biases, position biases and `wo` in float32."""
    folder.mkdir()
    checkpoint = checkpoints.read(source)
    tensors = {}
    for name in checkpoint:
        in_float32 = "bias" in name or "wo." in name or len(checkpoint.info(name).shape) == 1
        tensors[name] = mx.contiguous(checkpoint[name].astype(mx.float32 if in_float32 else dtype))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    raw = checkpoints.read_config(source)
    tokenizer = whisper_tokenizer(raw) if raw["model_type"] == "whisper" else TOKENIZER
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(("family", "bits"), [*((family, None) for family in FOLDERS), ("t5", 8), ("whisper", 8)])
def test_a_gpu_computes_in_one_dtype(
    family: str, bits: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, quantization scales, masks, caches, activations and logits."""
    folder = store_mixed(FOLDERS[family], tmp_path / "mixed", mx.bfloat16)
    raw, checkpoint = read_folder(folder)
    if bits is not None:
        _, raw, checkpoint = build_model(raw, checkpoint, Storage(None, bits, 32))  # with mixed scales
    pretend_gpu(monkeypatch, M3)
    model, _, checkpoint = build_model(raw, checkpoint, Storage(default_dtype(checkpoint)))
    model.load_checkpoint(checkpoint)
    dtypes = {array.dtype for _, array in tree_flatten(model.parameters())} - {mx.uint32}
    fused = mx.fast.scaled_dot_product_attention

    def record(queries: mx.array, keys: mx.array, values: mx.array, *, scale: float, mask: mx.array) -> mx.array:
        dtypes.update(each.dtype for each in (queries, keys, values, mask))
        return fused(queries, keys, values, scale=scale, mask=mask)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", record)
    tokens = mx.array([[5, 9, 3, 7], [4, 6, 0, 0]])
    source = tokens if model.audio is None else mx.ones((2, 8, model.audio.num_mel_bins))
    encoder_output = model.encode(source, mx.array([[True] * 4, [True, True, False, False]]))
    cache = model.make_cache(encoder_output)
    logits = model.decode(tokens, cache)
    dtypes |= {encoder_output.dtype, logits.dtype, cache.source_mask.dtype, *(each.dtype for each in cache.arrays)}
    assert dtypes == {mx.bfloat16} and mx.isfinite(logits).all()


DTYPES: dict[mx.Dtype, dict[str | None, str]] = {
    mx.bfloat16: {None: "float32", M1: "float16", M2: "float16", M3: "bfloat16"},
    mx.float16: {None: "float32", M1: "float16", M3: "float16"},
    mx.float32: {None: "float32", M1: "float32", M3: "float32"},
}
CELLS = [("t5", stored, device) for stored, choices in DTYPES.items() for device in choices]
CELLS += [(family, mx.bfloat16, M1) for family in FOLDERS if family != "t5"]  # only float16 depends on the family


@pytest.mark.parametrize(("family", "stored", "device"), CELLS, ids=str)
def test_the_dtype_depends_on_the_device_and_the_family(
    family: str, stored: mx.Dtype, device: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float16 replaces bfloat16 where bfloat16 is emulated, but only in families that cannot overflow."""
    folder = store_mixed(FOLDERS[family], tmp_path / "mixed", stored)
    if device is not None:
        pretend_gpu(monkeypatch, device)
    checkpoint = open_model(folder).checkpoint
    dtype = "bfloat16" if family in NO_FLOAT16 else DTYPES[stored][device]
    assert {checkpoint.info(name).dtype for name in checkpoint} == {getattr(mx, dtype)}


SCRIPT = """
import sys
from speculative_decoding.loading.pair import open_pair
open_pair({target!r}, {draft!r}).load_weights()
print(*sys.modules)
"""
FOR_OTHER_FILES = {
    *(
        f"checkpoints.{name}"
        for name in ("gguf", "indexed", "lora", "pickles", "quantized", "safetensors", "torch_bin")
    ),
    *(f"loading.{name}" for name in ("adapter", "clean_up", "hub", "language_codes", "lookup", "suggested_drafts")),
    *(f"loading.{name}_tokenizer" for name in ("canonical", "reference", "sentencepiece")),
    *(f"models.{name}" for name in ("bart", "gemma", "rope", "t5_float16", "t5gemma", "t5gemma2", "whisper")),
}
FOR_OTHER_COMMANDS = {"loading.conversion", "loading.hard_texts", "loading.tokenizer_settings"}
LIBRARIES = {"gguf", "huggingface_hub", "safetensors", "sentencepiece", "torch", "transformers"}


def test_a_converted_model_with_a_head_imports_one_reader_and_one_architecture() -> None:
    folders = {"target": str(BUNDLED / "t5-web-docs"), "draft": str(BUNDLED / "t5-web-docs-head")}
    command = [sys.executable, "-c", SCRIPT.format(**folders)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {name.removeprefix("speculative_decoding.") for name in result.stdout.split()}
    assert {"checkpoints.npz", "models.t5", "models.draft_head"} <= found
    assert not found & (FOR_OTHER_FILES | FOR_OTHER_COMMANDS | LIBRARIES)
    assert not any(name.split(".")[0] == "distributed" for name in found)


def test_a_folder_of_ctranslate2_without_its_weights_names_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"unk_token": "<unk>"}')
    with pytest.raises(checkpoints.CheckpointError, match=r"has no .model_type.; a CTranslate2 folder"):
        read_folder(tmp_path)
