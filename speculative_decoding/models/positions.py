"""What positions mean to attention. T5's relative position bias (Raffel et al. 2020, section 2.1): which bucket a
distance falls in, and the additive masks that the learned bias of each bucket makes.
"""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .compiled import Prepared


@lru_cache(maxsize=32)
def buckets_by_distance(length: int, causal: bool, num_buckets: int, max_distance: int) -> NDArray[np.int32]:
    """The bucket of each distance, key position minus query position, from -(length - 1) to length - 1.

    Near distances have their own, far ones share, as log(distance); past and future halve the buckets between them. If
    causal, the past has them all, and the future, which is hidden, one more.
    """
    signed = np.arange(-(length - 1), length)
    distance, past_buckets = np.abs(signed), num_buckets if causal else num_buckets // 2
    exact = past_buckets // 2
    # float32 in this order of operations: the published models were trained with these very roundings.
    furthest = np.float32(np.log(max_distance / exact))
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / furthest
    far = exact + (ratio * np.float32(past_buckets - exact)).astype(np.int64)
    past = np.where(distance < exact, distance, np.minimum(far, past_buckets - 1))
    return np.where(signed > 0, num_buckets if causal else past_buckets + past, past).astype(np.int32)


class RelativePositionBias(Prepared):
    """The learned bias of each (distance bucket, head), for all layers of a stack: one table that they share, or one
    for each. weight: (tables * num_buckets, H).
    """

    def __init__(self, tables: int, num_buckets: int, heads: int, max_distance: int, *, causal: bool) -> None:
        super().__init__()
        self.weight = mx.zeros((tables * num_buckets, heads))
        self.tables, self.num_buckets, self.heads = tables, num_buckets, heads
        self.max_distance, self.causal = max_distance, causal

    def __call__(self, offsets: mx.array, length: int, capacity: int) -> list[mx.array]:
        """The additive mask of each table, (B, H, length, capacity): query i of a row stands at position offset + i,
        key j at j. If causal, the future is -inf. One gather, whatever the number of rows, tables and positions.

        offsets: (B,), one for each row.
        """
        # Which window each query of a row at offset 0 adds to its scores, (tables * H, length).
        first = (2 * capacity - 1) * np.arange(self.tables * self.heads)[:, None] + capacity - 1
        numbers = mx.array((first - np.arange(length)).astype(np.int32))
        masks = mx.take(self.prepared(capacity), numbers - offsets[:, None, None], axis=0)
        return [masks] if self.tables == 1 else [*mx.split(masks, self.tables, axis=1)]

    def computed(self, capacity: int) -> mx.array:
        """For each (table, head) a line of biases by distance, 2 * capacity - 1 long, one behind the other; of that,
        every window of `capacity`, as views: one is what a query at one position adds to its scores.
        """
        tables = self.weight.reshape(self.tables, self.num_buckets, self.heads)
        if self.causal:
            hidden = mx.full((self.tables, 1, self.heads), -mx.inf, tables.dtype)
            tables = mx.concatenate([tables, hidden], axis=1)
        buckets = buckets_by_distance(capacity, self.causal, self.num_buckets, self.max_distance)
        lines = mx.take(tables, mx.array(buckets), axis=1).swapaxes(1, 2).flatten()
        return mx.as_strided(lines, (lines.size - capacity + 1, capacity), (1, 1))
