"""Attention with MLX's fused kernels equals our own matmuls and softmax."""

from __future__ import annotations

import sys

import mlx.core as mx
import pytest

from speculative_decoding.models import EncoderDecoder
from speculative_decoding.models.attention import attend, has_fused_kernel, window_softmax
from tests.support.device import within
from tests.support.metal import pretend_gpu
from tests.support.operations import uncompiled
from tests.support.tiny import tiny_model

FUSED_UP_TO_8 = {64, 96, 128, 256}
FUSED_ABOVE_8 = {64, 72, 80, 96, 128}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("width", [32, 64, 72, 256])
@pytest.mark.parametrize("length", [8, 9])
def test_fused_attention_equals_our_own_where_it_exists(
    length: int, width: int, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare with a CPU, which computes the kernel with MLX's fallback."""
    tolerance = within(1e-5)  # before a GPU is pretended
    queries = mx.random.normal((3, 4, length, width))
    keys, values = (mx.random.normal((3, key_heads, 20, width)) for _ in range(2))
    hidden = mx.random.normal((3, 1, length, 20)) > 1
    mask = mx.where(hidden, -mx.inf, mx.random.normal((3, 4 if key_heads == 4 else 1, length, 20)))
    with mx.stream(mx.cpu):
        own = attend(queries, keys, values, mask, scale=width**-0.5)
        mx.eval(own)
        assert not has_fused_kernel(queries, keys)
    pretend_gpu(monkeypatch)
    assert has_fused_kernel(queries, keys) == (width in (FUSED_UP_TO_8 if length <= 8 else FUSED_ABOVE_8))
    assert mx.allclose(attend(queries, keys, values, mask, scale=width**-0.5), own, atol=tolerance)
    assert own.shape == (3 * length, 4 * width)


def test_fused_attention_has_at_most_32_queries_for_a_key_head(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    keys = mx.zeros((1, 1, 20, 64))
    for heads, length, is_fused in ((4, 8, True), (8, 4, True), (8, 5, False)):
        assert has_fused_kernel(mx.zeros((1, heads, length, 64)), keys) == is_fused


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("is_gpu", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 5.0])
def test_a_mask_in_another_dtype_keeps_the_dtype_of_the_queries(
    soft_cap: float | None, is_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_gpu:
        pretend_gpu(monkeypatch)
    queries = mx.random.normal((1, 2, 3, 64)).astype(mx.bfloat16)
    mask = mx.zeros((1, 1, 3, 3), mx.float32)
    assert attend(queries, queries, queries, mask, soft_cap=soft_cap).dtype == mx.bfloat16


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [8, 9])
def test_fused_attention_over_a_cache_equals_our_own(length: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources and the offsets of the rows differ. All heads have a width of the fused kernels."""
    tolerance = within(1e-4)  # before a GPU is pretended
    with uncompiled(), mx.stream(mx.cpu):
        own = decode_after_a_rewind(tiny_model(d_kv=64), rows, length)
        mx.eval(own)
    pretend_gpu(monkeypatch)
    assert mx.abs(decode_after_a_rewind(tiny_model(d_kv=64), rows, length) - own).max().item() < tolerance


def decode_after_a_rewind(model: EncoderDecoder, rows: int, length: int) -> mx.array:
    lengths = mx.array([7, 4, 2][:rows])
    mask = mx.arange(7) < lengths[:, None]
    cache = model.make_cache(model.encode(mx.array([[5, 9, 12, 3, 8, 6, 1]] * rows), mask), mask)
    model.decode(mx.array([[0, 4, 7, 5, 3]] * rows), cache)
    cache.trim_to([5, 2, 3][:rows])
    return model.decode(mx.array([[11 + i for i in range(length)]] * rows), cache)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_attention_over_a_long_source_without_a_mask_equals_attention_with_an_empty_one(dtype: mx.Dtype) -> None:
    length = 387
    queries, keys, values = (mx.random.normal((2, 3, length, 8), key=mx.random.key(i)).astype(dtype) for i in range(3))
    found = attend(queries, keys, values, None, scale=0.25, softmax=window_softmax)
    exact = (x.astype(mx.float32) for x in (queries, keys, values))
    expected = attend(*exact, mx.zeros((1, 1, 1, length)), scale=0.25)
    assert found.dtype == dtype
    assert mx.allclose(found, expected, rtol=0, atol=within(1e-5) if dtype == mx.float32 else 1e-2).item()


@pytest.mark.usefixtures("device")
def test_query_heads_that_share_a_key_head_and_capped_scores_ignore_the_length_of_the_source() -> None:
    queries = mx.random.normal((1, 4, 257, 8), key=mx.random.key(0))
    keys, values = (mx.random.normal((1, 2, 257, 8), key=mx.random.key(i)) for i in (1, 2))
    mask = mx.zeros((1, 1, 1, 257))
    for soft_cap in (None, 5.0):
        found = attend(queries, keys, values, None, soft_cap=soft_cap, softmax=window_softmax)
        assert mx.allclose(found, attend(queries, keys, values, mask, soft_cap=soft_cap), atol=within(1e-5)).item()


@pytest.mark.skipif(sys.platform == "darwin", reason="Accelerate may sum in another order")
@pytest.mark.parametrize("length", [1, 5])
def test_masked_padding_of_any_length_changes_no_bit(length: int) -> None:
    """Otherwise a row would depend on the longest source of its batch, or on the capacity of the KV cache."""
    queries = mx.random.normal((1, 3, length, 8), key=mx.random.key(0)) * 3
    keys, values = (mx.random.normal((1, 3, 1200, 8), key=mx.random.key(i)) for i in (1, 2))
    mask = mx.where(mx.arange(1200) < 300, 0.0, -mx.inf)[None, None, None]
    short = attend(queries, keys[:, :, :300], values[:, :, :300], mask[..., :300])
    for capacity in (511, 512, 600, 1200):
        padded = attend(queries, keys[:, :, :capacity], values[:, :, :capacity], mask[..., :capacity])
        assert mx.array_equal(padded, short).item()


@pytest.mark.skipif(sys.platform == "darwin", reason="Accelerate may sum in another order")
def test_a_long_source_of_text_has_the_same_bits_in_every_batch() -> None:
    length = 265
    queries, keys, values = (mx.random.normal((2, 3, length, 8), key=mx.random.key(i)) for i in range(3))
    alone = attend(queries[:1], keys[:1], values[:1], None)
    assert mx.array_equal(alone, attend(queries, keys, values, mx.zeros((2, 1, 1, length)))[:length]).item()


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("architecture", ["applegpu_g13g", "applegpu_g15s"])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
@pytest.mark.parametrize("length", [1, 5])
def test_heads_of_one_row_are_read_as_a_transpose_where_bits_stay(
    length: int, dtype: mx.Dtype, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a transposed view, the numbers of one unit in all tokens are adjacent."""
    tolerance = within(1e-5) if dtype == mx.float32 else 1e-2
    queries, keys, values = (mx.random.normal((1, 2, each, 32)).astype(dtype) for each in (length, 20, 20))
    with mx.stream(mx.cpu):
        own = attend(queries, keys, values, None)
        mx.eval(own)
    pretend_gpu(monkeypatch, architecture)
    found = attend(queries, keys, values, None)
    assert mx.allclose(found, own, atol=tolerance)
    is_view = length > 1 and (dtype == mx.float32 or architecture == "applegpu_g13g")
    assert (memoryview(found).strides[0] == dtype.size) == is_view  # type: ignore[arg-type, index]
