"""Positions as vectors that are added to embeddings, learned or of sines and cosines, and the mask that goes with them:
who sees only what is behind. T5's biases are in positions.py.
"""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .compiled import Prepared


def causal(places: mx.array, capacity: int, dtype: mx.Dtype) -> mx.array:
    """Additive, (B, 1, L, capacity): query i of a row, at position places[row, i], sees the keys up to there."""
    seen = mx.arange(capacity) <= places[:, None, :, None]
    return mx.where(seen, mx.array(0, dtype), mx.array(-mx.inf, dtype))


class AbsolutePositions(Prepared):
    """A vector for each position, to be added to what is embedded there. No position below the `capacity` of a pass
    lies outside of the table, so nothing is read that is none.
    """

    def __call__(self, places: mx.array, capacity: int) -> mx.array:
        """Positions (B, L) -> (B, L, d), of a table (capacity, d)."""
        return mx.take(self.prepared(capacity), places, axis=0)


class LearnedPositions(AbsolutePositions):
    """weight: (offset + positions, d); the first `offset` rows belong to no position. Behind the last there are zeros,
    for what is never kept: drafted tokens and padding.
    """

    def __init__(self, positions: int, width: int, offset: int) -> None:
        super().__init__()
        self.weight = mx.zeros((offset + positions, width))
        self.offset = offset

    def computed(self, capacity: int) -> mx.array:
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

    @property
    def source(self) -> object:
        return None

    def computed(self, capacity: int) -> mx.array:
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
