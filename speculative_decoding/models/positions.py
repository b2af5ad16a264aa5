"""What positions mean: to attention, T5's relative position bias (Raffel et al. 2020, section 2.1), which bucket a
distance falls in, and the additive masks that the learned bias of each bucket makes; to embeddings, BART's vector for
each position, learned or of sines and cosines.
"""

from __future__ import annotations

from abc import abstractmethod
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
        self._ready: dict[int, tuple[mx.array, mx.array]] = {}  # by capacity: a weight, and its windows

    def __call__(self, offsets: mx.array, length: int, capacity: int) -> list[mx.array]:
        """The additive mask of each table, (B, H, length, capacity): query i of a row stands at position offset + i,
        key j at j. If causal, the future is -inf. One gather, whatever the number of rows, tables and positions.

        offsets: (B,), one for each row.
        """
        weight, windows = self._ready.get(capacity, (None, None))
        if windows is None or weight is not self.weight:
            windows = self._windows(capacity)
        # Which window each query of a row at offset 0 adds to its scores, (tables * H, length).
        first = (2 * capacity - 1) * np.arange(self.tables * self.heads)[:, None] + capacity - 1
        numbers = mx.array((first - np.arange(length)).astype(np.int32))
        masks = mx.take(windows, numbers - offsets[:, None, None], axis=0)
        return [masks] if self.tables == 1 else [*mx.split(masks, self.tables, axis=1)]

    def _windows(self, capacity: int) -> mx.array:
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

    def prepare(self, capacity: int) -> mx.array:
        self._ready[capacity] = self.weight, self._windows(capacity)
        return self._ready[capacity][1]

    def forget(self) -> None:
        self._ready.clear()


def causal(places: mx.array, capacity: int, dtype: mx.Dtype) -> mx.array:
    """Additive, (B, 1, L, capacity): query i of a row, at position places[row, i], sees the keys up to there."""
    seen = mx.arange(capacity) <= places[:, None, :, None]
    return mx.where(seen, mx.array(0, dtype), mx.array(-mx.inf, dtype))


class AbsolutePositions(Prepared):
    """A vector for each position, to be added to what is embedded there. No position below the `capacity` of a pass
    lies outside of the table, so nothing is read that is none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ready: dict[int, tuple[object, mx.array]] = {}  # by capacity: what the table was made of, and the table

    def __call__(self, places: mx.array, capacity: int) -> mx.array:
        """Positions (B, L) -> (B, L, d)."""
        source, table = self._ready.get(capacity, (None, None))
        if table is None or source is not self.source:
            table = self._table(capacity)
        return mx.take(table, places, axis=0)

    @property
    def source(self) -> object:
        """What a table is made of: while this is the same object, so is the table."""
        return None

    @abstractmethod
    def _table(self, capacity: int) -> mx.array:
        """(capacity, d)."""

    def prepare(self, capacity: int) -> mx.array:
        self._ready[capacity] = self.source, self._table(capacity)
        return self._ready[capacity][1]

    def forget(self) -> None:
        self._ready.clear()


class LearnedPositions(AbsolutePositions):
    """weight: (offset + positions, d); the first `offset` rows belong to no position. Behind the last there are zeros,
    for what is never kept: drafted tokens and padding.
    """

    def __init__(self, positions: int, width: int, offset: int) -> None:
        super().__init__()
        self.weight = mx.zeros((offset + positions, width))
        self.offset = offset

    @property
    def source(self) -> object:
        return self.weight

    def _table(self, capacity: int) -> mx.array:
        table = self.weight[self.offset : self.offset + capacity]
        return mx.pad(table, [(0, capacity - table.shape[0]), (0, 0)])


class SinusoidalPositions(AbsolutePositions):
    """Sines, then cosines, of wavelengths from 2 pi to 10000 * 2 pi (Vaswani et al. 2017, section 3.5); float32.

    first: the number of position 0. spread: the longest wavelength is reached by the last pair (fairseq), else missed
    by one (Marian).
    """

    def __init__(self, width: int, first: int = 0, *, spread: bool = False) -> None:
        super().__init__()
        self.width, self.first, self.spread = width, first, spread

    def _table(self, capacity: int) -> mx.array:
        return mx.array(sinusoids(self.first, capacity, self.width, self.spread))


@lru_cache(maxsize=8)
def sinusoids(first: int, count: int, width: int, spread: bool) -> NDArray[np.float32]:
    """(count, width), for the positions from `first`."""
    half = width // 2
    numbers = np.arange(first, first + count)[:, None]
    if spread:  # float32 in this order of operations, as the published models were trained
        step = np.float32(np.log(10000) / (half - 1))
        angles = numbers.astype(np.float32) * np.exp(np.arange(half, dtype=np.float32) * -step)
    else:
        angles = numbers / np.power(10000, 2 * np.arange(half) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
