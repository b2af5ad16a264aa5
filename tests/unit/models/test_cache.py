"""The contract of a cache: each row appends at its offset, and can rewind to any earlier offset without a trace."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.models import cache as cache_module
from speculative_decoding.models.cache import MIN_CAPACITY, DecoderCache

ROWS = [1, 2, 5]


def make(rows: int, heads: int = 1, width: int = 2, dtype: mx.Dtype = mx.float32) -> DecoderCache:
    """Make a cache of one layer, for a source of one token."""
    cross = mx.zeros((rows, heads, 1, width), dtype)
    return DecoderCache.empty([(cross, cross)], mx.zeros((rows, 1, 1, 1), dtype))


def append(cache: DecoderCache, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
    """Append keys and values (B, H, L, D) as a pass does."""
    length = keys.shape[2]
    cache.reserve(cache.offset + length)
    cache.layers[0].write_index = cache.write_index(length)
    assert cache.layers[0].write_index.dtype == mx.int32  # half the bytes of numpy's default
    all_keys, all_values = cache.layers[0].append(mx.stack([keys, values]))
    cache.advance(length)
    return all_keys, all_values


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "is_gpu"), [*((rows, False) for rows in ROWS), (1, True)])
def test_a_cache_with_rewinds_equals_a_list(
    rows: int, is_gpu: bool, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare random appends and rewinds with plain arrays, across several growth steps."""
    monkeypatch.setattr(cache_module, "on_gpu", lambda: is_gpu)
    generator = np.random.default_rng(rows)
    cache, kept = make(rows, 2, 3, dtype), [np.zeros((2, 0, 3), np.float32) for _ in range(rows)]
    for turn in range(160):
        # small integers, which every dtype represents exactly
        new = generator.integers(-99, 99, (rows, 2, generator.integers(1, 9), 3)).astype(np.float32)
        kept = [np.concatenate(pair, axis=1) for pair in zip(kept, new, strict=True)]
        keys, values = append(cache, mx.array(new).astype(dtype), mx.array(-new).astype(dtype))
        assert keys.dtype == values.dtype == dtype and keys.shape[2] == values.shape[2] == cache.capacity
        for b, row in enumerate(kept):
            held = slice(0, row.shape[1])
            assert np.array_equal(np.array(keys[b, :, held].astype(mx.float32)), row)
            assert np.array_equal(np.array(values[b, :, held].astype(mx.float32)), -row)
        offsets = [int(generator.integers(max(0, row.shape[1] - 6), row.shape[1] + 1)) for row in kept]
        if turn % 16 == 0:  # all rows at one offset
            offsets = [min(offsets)] * rows
        cache.trim_to(offsets if turn % 2 else (offsets[0] if len(set(offsets)) == 1 else offsets))
        kept = [row[:, :offset] for row, offset in zip(kept, offsets, strict=True)]
        assert cache.offsets == offsets and cache.offset == max(offsets)
    assert cache.capacity > MIN_CAPACITY


def test_a_rewind_is_absolute_idempotent_and_never_forward() -> None:
    cache = make(1)
    append(cache, mx.ones((1, 1, 5, 2)), mx.ones((1, 1, 5, 2)))
    for offset, expected in ((3, 3), (3, 3), (4, 3), (0, 0)):
        cache.trim_to(offset)
        assert cache.offset == expected
    with pytest.raises(ValueError, match="offset"):
        cache.trim_to(-1)


@pytest.mark.usefixtures("device")
def test_rows_are_rewound_separately() -> None:
    cache = make(3)
    append(cache, mx.ones((3, 1, 5, 2)), mx.ones((3, 1, 5, 2)))
    for offsets, expected in (([5, 3, 4], [5, 3, 4]), ([9, 9, 2], [5, 3, 2]), (4, [4, 3, 2])):
        cache.trim_to(offsets)
        assert cache.offsets == expected
    with pytest.raises(ValueError, match="2 offsets for 3 rows"):
        cache.trim_to([1, 1])
    with pytest.raises(ValueError, match="offset"):
        cache.trim_to([1, -1, 1])
    assert cache.offsets == [4, 3, 2]  # a refused rewind changes nothing


def test_a_rewind_moves_no_data() -> None:
    cache = make(3)
    append(cache, mx.ones((3, 1, 5, 2)), mx.ones((3, 1, 5, 2)))
    before = cache.arrays
    cache.trim_to([1, 4, 2])
    assert all(new is old for new, old in zip(cache.arrays, before, strict=True))


@pytest.mark.usefixtures("device")
def test_selected_rows_keep_their_contents() -> None:
    cache = make(4, 2, 3)
    new = mx.random.normal((4, 2, 6, 3), key=mx.random.key(0))
    append(cache, new, -new)
    cache.trim_to([6, 2, 5, 3])
    cache.select([3, 0])
    assert cache.offsets == [3, 6]
    keys, _ = append(cache, mx.zeros((2, 2, 1, 3)), mx.zeros((2, 2, 1, 3)))
    assert mx.array_equal(keys[0, :, :3], new[3, :, :3]) and mx.array_equal(keys[1, :, :6], new[0])


def test_passes_attend_over_the_reserved_capacity_which_grows_only_when_full() -> None:
    cache = make(2)
    cache.reserve(70)
    for length in (1, 7, 30):
        keys, values = append(cache, mx.ones((2, 1, length, 2)), mx.ones((2, 1, length, 2)))
        assert keys.shape[2] == values.shape[2] == cache.capacity == 128
        cache.trim_to([length, length - 1])
    cache.trim_to([29, 28])
    append(cache, mx.ones((2, 1, 99, 2)), mx.ones((2, 1, 99, 2)))
    assert cache.capacity == 128
    append(cache, mx.ones((2, 1, 1, 2)), mx.ones((2, 1, 1, 2)))
    assert cache.capacity == 256
