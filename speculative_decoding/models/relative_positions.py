"""T5's relative position bias (Raffel et al. 2020, section 2.1): a learned bias for each distance bucket."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray


class RelativePositionBias(nn.Module):
    """Learned biases for each distance bucket and head, for all of a stack's layers.

    Either all layers share one table, or each layer has its own. weight: (tables * num_buckets, H).
    """

    def __init__(self, tables: int, num_buckets: int, heads: int, max_distance: int, *, causal: bool) -> None:
        super().__init__()
        self.weight = mx.zeros((tables * num_buckets, heads))
        self.tables = tables
        self.num_buckets = num_buckets
        self.heads = heads
        self.max_distance = max_distance
        self.causal = causal

    def __call__(self, windows: mx.array, starts: mx.array) -> list[mx.array]:
        """Return each table's additive mask, (B, H, L, T). Causal biases mask the future with -inf.

        A single gather computes the masks for all rows, tables and positions.

        Args:
            windows: `self.windows(T)`.
            starts: `self.starts`, with the positions of the queries.
        """
        masks = mx.take(windows, starts, axis=0)
        return [masks] if self.tables == 1 else [*mx.split(masks, self.tables, axis=1)]

    def starts(self, offsets: Sequence[int], length: int, capacity: int) -> mx.array:
        """Return the index in `windows(capacity)` of each query's window, (B, tables * H, length).

        Query i of a row has position offset + i, and key j has position j. There are 2T - 1 biases per table and head.
        Position 0's window starts in the middle, at distance 0. Each later position's window starts one bias earlier.
        """
        tables_and_heads = np.arange(self.tables * self.heads)[:, None]
        starts = (2 * capacity - 1) * tables_and_heads + (capacity - 1) - np.arange(length)
        return mx.array((starts - np.array(offsets)[:, None, None]).astype(np.int32))

    def windows(self, capacity: int) -> mx.array:
        """Return the biases to add to the scores of a query at each position: (windows, T), where T is `capacity`.

        For each table and head, the biases of all distances, from -(T - 1) to T - 1, are adjacent in memory. Relative
        to a query at position p, keys 0 to T - 1 have distances -p to T - 1 - p, so their T biases are also adjacent.
        These T biases are the query's window. Windows overlap and are therefore views.
        """
        tables = self.weight.reshape(self.tables, self.num_buckets, self.heads)
        if self.causal:  # an extra bucket with a bias of -inf, for future keys
            masked = mx.full((self.tables, 1, self.heads), -mx.inf, tables.dtype)
            tables = mx.concatenate([tables, masked], axis=1)
        buckets = buckets_by_distance(capacity, self.causal, self.num_buckets, self.max_distance)
        line = mx.take(tables, mx.array(buckets), axis=1).swapaxes(1, 2).flatten()
        return mx.as_strided(line, (line.size - capacity + 1, capacity), (1, 1))


@lru_cache(maxsize=32)
def buckets_by_distance(length: int, causal: bool, num_buckets: int, max_distance: int) -> NDArray[np.int32]:
    """Return the bucket of each distance (key position minus query position) from -(length - 1) to length - 1.

    Each short distance has its own bucket; longer distances share buckets on a logarithmic scale. Half of the buckets
    cover the past, the other half the future. If `causal`, all of them cover the past, and an extra bucket covers the
    masked future.
    """
    signed = np.arange(-(length - 1), length)
    distance = np.abs(signed)
    past_buckets = num_buckets if causal else num_buckets // 2
    exact = past_buckets // 2
    # Keep float32 and this order of operations: the published models were trained with the same rounding.
    furthest = np.float32(np.log(max_distance / exact))
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / furthest
    far = exact + (ratio * np.float32(past_buckets - exact)).astype(np.int64)
    past = np.where(distance < exact, distance, np.minimum(far, past_buckets - 1))
    future = num_buckets if causal else past_buckets + past
    return np.where(signed > 0, future, past).astype(np.int32)
