"""T5's relative position bias (Raffel et al. 2020, section 2.1): which bucket a distance falls in, and the additive
mask that a pass of the decoder makes of it.
"""

from __future__ import annotations

from functools import lru_cache, partial

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

    With `causal`, pairs in the future are given bucket `num_buckets`, for which `BiasWindows` holds -inf: one
    gather yields bias and mask. A row of the matrix is a window of one vector, so nothing is computed per pass.
    """
    size = 64
    while size < max(keys, offset + queries):
        size *= 2
    row = _windows(size, causal, num_buckets, max_distance)
    start = size - 1 - offset
    windows = np.lib.stride_tricks.sliding_window_view(row, keys)
    return mx.array(windows[np.arange(start, start - queries, -1)])


def bias_matrix(weight: mx.array, length: int, max_distance: int) -> mx.array:
    """(num_buckets, H) weights -> (H, length, length) bias of an encoder's self-attention."""
    buckets = bucket_matrix(0, length, length, causal=False, num_buckets=weight.shape[0], max_distance=max_distance)
    return mx.take(weight.T, buckets, axis=1)


class BiasWindows:
    """The causal bias of one decoder layer, or of all that share it, for the passes of one request: gathered once,
    then cut. weight: (num_buckets, H).
    """

    width = 16  # queries; a longer pass, as over a prefix, is gathered for itself

    def __init__(self, weight: mx.array, max_distance: int) -> None:
        hidden = mx.full((1, weight.shape[1]), -mx.inf, weight.dtype)
        self._table = mx.contiguous(mx.concatenate([weight, hidden]).T)  # (H, num_buckets + 1); the last column hides
        self._buckets = partial(bucket_matrix, causal=True, num_buckets=weight.shape[0], max_distance=max_distance)
        self._size = 32
        self._windows: mx.array | None = None  # (H, width, 2 * size): query i stands at position size - 1 + i

    def __call__(self, offset: int, queries: int, keys: int) -> mx.array:
        """(H, queries, keys) additive mask; query i stands at position offset + i and sees keys up to there."""
        if queries > self.width:
            return mx.take(self._table, self._buckets(offset, queries, keys), axis=1)
        if self._windows is None or self._size < max(offset + 1, keys):
            while self._size < max(offset + 1, keys):
                self._size *= 2
            self._windows = mx.take(self._table, self._buckets(self._size - 1, self.width, 2 * self._size), axis=1)
        start = self._size - 1 - offset
        return self._windows[:, :queries, start : start + keys]
