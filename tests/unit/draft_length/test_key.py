"""What measurements depend on."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest

from speculative_decoding.draft_length.key import calibration_key, gives_any_width_the_same_bits
from speculative_decoding.version import native_libraries
from tests.support.metal import pretend_gpu
from tests.support.tiny import tiny_model


def test_the_key_differs_by_target_ranks_libraries_and_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    key = calibration_key(tiny_model())
    assert key == calibration_key(tiny_model(seed=8))  # weights change neither speed nor bits
    half = tiny_model()
    half.set_dtype(mx.bfloat16)
    others = [calibration_key(half), calibration_key(tiny_model(d_ff=64)), calibration_key(tiny_model(num_layers=3))]
    monkeypatch.setitem(native_libraries, "blas", "another")
    others.append(calibration_key(tiny_model()))
    monkeypatch.setenv("MLX_ENABLE_TF32", "another")
    others.append(calibration_key(tiny_model()))
    shard = tiny_model()
    shard.ranks = 2
    others.append(calibration_key(shard))
    for architecture in ("applegpu_g15s", "applegpu_g16s"):  # all virtual Macs have one device name
        with monkeypatch.context() as patch:
            pretend_gpu(patch, architecture)
            others.append(calibration_key(tiny_model()))
    assert len({key, *others}) == 9


def test_equal_bits_are_known_for_float32_with_tiles_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(native_libraries, "equal_rows", "float32")
    assert gives_any_width_the_same_bits(tiny_model())
    half, quantized = tiny_model(), tiny_model(d_model=64, d_kv=32, num_heads=2, d_ff=64)
    half.set_dtype(mx.bfloat16)
    nn.quantize(quantized, 64, 8, class_predicate=lambda path, layer: isinstance(layer, nn.Linear))
    assert not gives_any_width_the_same_bits(half) and not gives_any_width_the_same_bits(quantized)
    with monkeypatch.context() as patch:
        pretend_gpu(patch)
        assert not gives_any_width_the_same_bits(tiny_model())
    monkeypatch.delitem(native_libraries, "equal_rows")
    assert not gives_any_width_the_same_bits(tiny_model())
