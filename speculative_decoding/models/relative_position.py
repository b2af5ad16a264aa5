"""T5's relative position bias: which bucket a distance falls in (Raffel et al. 2020, section 2.1)."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


def bucket(
    distance: NDArray[np.int64], *, bidirectional: bool, num_buckets: int, max_distance: int
) -> NDArray[np.int32]:
    """Key position minus query position -> bucket. Near distances have their own, far ones share, as log(distance)."""
    distance = np.asarray(distance)
    if bidirectional:
        num_buckets //= 2
        side = np.where(distance > 0, num_buckets, 0)
        distance = np.abs(distance)
    else:
        side = np.zeros_like(distance)
        distance = np.maximum(-distance, 0)
    exact = num_buckets // 2
    # float32 in this order of operations: the published models were trained with these very roundings.
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        np.log(max_distance / exact)
    )
    far = exact + (ratio * np.float32(num_buckets - exact)).astype(np.int64)
    return (side + np.where(distance < exact, distance, np.minimum(far, num_buckets - 1))).astype(np.int32)


@lru_cache(maxsize=32)
def _windows(size: int, causal: bool, num_buckets: int, max_distance: int) -> NDArray[np.int32]:
    """Buckets of the distances -(size - 1) .. size - 1; the future, if hidden, gets one bucket of its own."""
    distance = np.arange(-(size - 1), size)
    row = bucket(distance, bidirectional=not causal, num_buckets=num_buckets, max_distance=max_distance)
    return np.where(distance > 0, num_buckets, row).astype(np.int32) if causal else row


def bucket_matrix(
    offset: int, queries: int, keys: int, *, causal: bool, num_buckets: int, max_distance: int
) -> mx.array:
    """(queries, keys) bucket of each pair; query i stands at position offset + i.

    With `causal`, pairs in the future are given bucket `num_buckets`, for which `bias_table` holds -inf: one gather
    yields bias and mask. A row of the matrix is a window of one vector, so nothing is computed per pass.
    """
    size = 64
    while size < max(keys, offset + queries):
        size *= 2
    row = _windows(size, causal, num_buckets, max_distance)
    start = size - 1 - offset
    windows = np.lib.stride_tricks.sliding_window_view(row, keys)
    return mx.array(windows[np.arange(start, start - queries, -1)])


def bias_table(weight: mx.array) -> mx.array:
    """(num_buckets, H) -> (H, num_buckets + 1); the last column hides."""
    hidden = mx.full((1, weight.shape[1]), -mx.inf, weight.dtype)
    return mx.contiguous(mx.concatenate([weight, hidden]).T)
