"""The contract of a cache: append at the offset, rewind to any absolute offset, as if the rest had never been."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.models.cache import KVCache

CACHES = [KVCache]


@pytest.mark.parametrize("make", CACHES)
def test_a_cache_with_rewinds_equals_a_list(make: type[KVCache]) -> None:
    """Random appends and rewinds against a plain array, across several growth steps."""
    generator = np.random.default_rng(0)
    cache, kept = make(), np.zeros((1, 2, 0, 3), np.float32)
    for _ in range(200):
        new = generator.normal(size=(1, 2, generator.integers(1, 9), 3)).astype(np.float32)
        kept = np.concatenate([kept, new], axis=2)
        keys, values = cache.update_and_fetch(mx.array(new), mx.array(-new))
        assert np.array_equal(np.array(keys), kept) and np.array_equal(np.array(values), -kept)
        offset = int(generator.integers(max(0, kept.shape[2] - 6), kept.shape[2] + 1))
        cache.trim_to(offset)
        kept = kept[:, :, :offset]
        assert cache.offset == offset


@pytest.mark.parametrize("make", CACHES)
def test_a_rewind_is_absolute_idempotent_and_never_forward(make: type[KVCache]) -> None:
    cache = make()
    cache.update_and_fetch(mx.ones((1, 1, 5, 2)), mx.ones((1, 1, 5, 2)))
    for offset, expected in ((3, 3), (3, 3), (4, 3), (0, 0)):
        cache.trim_to(offset)
        assert cache.offset == expected
    with pytest.raises(ValueError, match="offset"):
        cache.trim_to(-1)
