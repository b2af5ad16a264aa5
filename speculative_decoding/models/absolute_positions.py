"""Learned and sinusoidal position vectors, which are added to embeddings, and the causal mask."""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray


def causal_mask(positions: mx.array, capacity: int, dtype: mx.Dtype) -> mx.array:
    """Return an additive mask (B, 1, L, capacity) that lets each query attend to keys up to its own position.

    positions: (B, L), the queries' positions.
    """
    visible = mx.array(np.arange(capacity, dtype=np.int32)) <= positions[:, None, :, None]
    return mx.where(visible, mx.array(0, dtype), mx.array(-mx.inf, dtype))


class LearnedPositions(nn.Module):
    """A learned table (offset + positions, d), whose first `offset` rows are unused.

    Positions past the end of the table are encoded as zero vectors; only rejected draft tokens and padding have such
    positions.
    """

    def __init__(self, positions: int, width: int, offset: int) -> None:
        super().__init__()
        self.weight = mx.zeros((offset + positions, width))
        self.offset = offset

    def table(self, capacity: int) -> mx.array:
        """Return the vectors of positions 0 to capacity - 1, (capacity, d)."""
        table = self.weight[self.offset : self.offset + capacity]
        return mx.pad(table, [(0, capacity - table.shape[0]), (0, 0)])


class SinusoidalPositions(nn.Module):
    """Sines, then cosines, with wavelengths from 2 pi to 10000 * 2 pi (Vaswani et al. 2017, section 3.5); float32.

    Args:
        first: The number that encodes position 0.
        includes_longest: Whether the last pair has the longest wavelength (fairseq); otherwise, the wavelengths end one
            step below it (Marian).
    """

    def __init__(self, width: int, first: int = 0, *, includes_longest: bool = False) -> None:
        super().__init__()
        self.width = width
        self.first = first
        self.includes_longest = includes_longest

    def table(self, capacity: int) -> mx.array:
        """Return the vectors of positions 0 to capacity - 1, (capacity, d)."""
        return mx.array(sinusoids(self.first, capacity, self.width, self.includes_longest))


@lru_cache(maxsize=8)
def sinusoids(first: int, count: int, width: int, includes_longest: bool) -> NDArray[np.float32]:
    """Return the vectors of `count` positions, (count, width)."""
    half = width // 2
    numbers = np.arange(first, first + count)[:, None]
    if includes_longest:  # keep float32 and this order: the published models were trained with its rounding
        step = np.float32(np.log(10000) / (half - 1))
        angles = numbers.astype(np.float32) * np.exp(np.arange(half, dtype=np.float32) * -step)
    else:
        angles = numbers / np.power(10000, 2 * np.arange(half) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
