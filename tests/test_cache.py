"""The contract of a cache: each row appends at its offset and rewinds to any absolute offset, as if the rest had never
been, whatever the other rows do."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.models.cache import KVCache

CACHES: list[Callable[[int], KVCache]] = [KVCache]
ROWS = [1, 2, 5]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("make", CACHES)
def test_a_cache_with_rewinds_equals_a_list(make: Callable[[int], KVCache], rows: int, dtype: mx.Dtype) -> None:
    """Random appends and rewinds of each row against plain arrays, across several growth steps."""
    generator = np.random.default_rng(rows)
    cache, kept = make(rows), [np.zeros((2, 0, 3), np.float32) for _ in range(rows)]
    for turn in range(160):
        # small integers, which every type holds exactly
        new = generator.integers(-99, 99, (rows, 2, generator.integers(1, 9), 3)).astype(np.float32)
        kept = [np.concatenate(pair, axis=1) for pair in zip(kept, new, strict=True)]
        keys, values = cache.update_and_fetch(mx.array(new).astype(dtype), mx.array(-new).astype(dtype))
        assert keys.dtype == values.dtype == dtype and keys.shape[2] == max(row.shape[1] for row in kept)
        for b, row in enumerate(kept):
            held = slice(0, row.shape[1])
            assert np.array_equal(np.array(keys[b, :, held].astype(mx.float32)), row)
            assert np.array_equal(np.array(values[b, :, held].astype(mx.float32)), -row)
        offsets = [int(generator.integers(max(0, row.shape[1] - 6), row.shape[1] + 1)) for row in kept]
        if turn % 16 == 0:  # all rows at one offset again, as after a round that all of them accepted
            offsets = [min(offsets)] * rows
        cache.trim_to(offsets if turn % 2 else (offsets[0] if len(set(offsets)) == 1 else offsets))
        kept = [row[:, :offset] for row, offset in zip(kept, offsets, strict=True)]
        assert cache.offsets == offsets and cache.offset == max(offsets)
        assert cache.is_ragged == (len(set(offsets)) > 1)
    assert cache.keys is not None and cache.keys.shape[2] > KVCache.step


@pytest.mark.parametrize("make", CACHES)
def test_a_rewind_is_absolute_idempotent_and_never_forward(make: Callable[[int], KVCache]) -> None:
    cache = make(1)
    cache.update_and_fetch(mx.ones((1, 1, 5, 2)), mx.ones((1, 1, 5, 2)))
    for offset, expected in ((3, 3), (3, 3), (4, 3), (0, 0)):
        cache.trim_to(offset)
        assert cache.offset == expected
    with pytest.raises(ValueError, match="offset"):
        cache.trim_to(-1)


@pytest.mark.parametrize("make", CACHES)
def test_rows_are_rewound_one_by_one(make: Callable[[int], KVCache]) -> None:
    cache = make(3)
    cache.update_and_fetch(mx.ones((3, 1, 5, 2)), mx.ones((3, 1, 5, 2)))
    for offsets, expected in (([5, 3, 4], [5, 3, 4]), ([9, 9, 2], [5, 3, 2]), (4, [4, 3, 2])):
        cache.trim_to(offsets)
        assert cache.offsets == expected
    with pytest.raises(ValueError, match="2 offsets for 3 rows"):
        cache.trim_to([1, 1])
    with pytest.raises(ValueError, match="offset"):
        cache.trim_to([1, -1, 1])
    assert cache.offsets == [4, 3, 2]  # a refused rewind changes nothing


@pytest.mark.parametrize("make", CACHES)
def test_a_rewind_moves_no_data(make: Callable[[int], KVCache]) -> None:
    cache = make(3)
    cache.update_and_fetch(mx.ones((3, 1, 5, 2)), mx.ones((3, 1, 5, 2)))
    before = cache.keys, cache.values
    cache.trim_to([1, 4, 2])
    assert cache.keys is before[0] and cache.values is before[1]


@pytest.mark.parametrize("make", CACHES)
def test_selected_rows_are_what_they_were(make: Callable[[int], KVCache]) -> None:
    cache = make(4)
    new = mx.random.normal((4, 2, 6, 3), key=mx.random.key(0))
    cache.update_and_fetch(new, -new)
    cache.trim_to([6, 2, 5, 3])
    cache.select([3, 0])
    assert cache.offsets == [3, 6]
    keys, _ = cache.update_and_fetch(mx.zeros((2, 2, 1, 3)), mx.zeros((2, 2, 1, 3)))
    assert mx.array_equal(keys[0, :, :3], new[3, :, :3]) and mx.array_equal(keys[1, :, :6], new[0])


@pytest.mark.parametrize("make", CACHES)
def test_a_fixed_size_is_always_attended_over_and_never_passed(make: Callable[[int], KVCache]) -> None:
    cache = make(2)
    cache.size = 64
    for length in (1, 7, 30):
        keys, values = cache.update_and_fetch(mx.ones((2, 1, length, 2)), mx.ones((2, 1, length, 2)))
        assert keys.shape[2] == values.shape[2] == 64
        cache.trim_to([length, length - 1])
    cache.trim_to([29, 28])
    with pytest.raises(ValueError, match="fixed size of 64"):
        cache.update_and_fetch(mx.ones((2, 1, 36, 2)), mx.ones((2, 1, 36, 2)))
