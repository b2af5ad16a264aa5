"""All tensors of a model have one dtype, which depends on the checkpoint and the device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from speculative_decoding import checkpoints
from speculative_decoding.loading.load import Storage, build_model, default_dtype, open_model, read_folder
from tests.parity.test_families import FOLDERS
from tests.support.pretended_gpu import pretend_gpu
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
@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("family", FOLDERS)
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


@pytest.mark.parametrize("family", FOLDERS)
def test_the_dtype_depends_on_the_device_and_the_family(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float16 replaces bfloat16 where bfloat16 is emulated, but only in families that cannot overflow."""
    expected = {
        mx.bfloat16: {None: "float32", M1: "float16", M2: "float16", M3: "bfloat16"},
        mx.float16: {None: "float32", M1: "float16", M3: "float16"},
        mx.float32: {None: "float32", M1: "float32", M3: "float32"},
    }
    for stored, choices in expected.items():
        folder = store_mixed(FOLDERS[family], tmp_path / str(stored), stored)
        for architecture, dtype in choices.items():
            with monkeypatch.context() as patch:
                if architecture is None:
                    patch.setattr(mx, "default_device", lambda: mx.Device(mx.cpu))
                else:
                    pretend_gpu(patch, architecture)
                checkpoint = open_model(folder).checkpoint
            if dtype == "float16" and family in NO_FLOAT16:
                dtype = "bfloat16"
            assert {checkpoint.info(name).dtype for name in checkpoint} == {getattr(mx, dtype)}
