"""Rotary positions (Su et al. 2021, "RoFormer", 2104.09864) and attention windows.

A key is rotated once, by the position at which it is written. The cache stores rotated keys, so a rollback moves no
data.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass(frozen=True)
class Rope:
    """Rotary embedding.

    base: the base of the wavelengths.
    factor: the divisor of positions ("linear" scaling).
    """

    base: float
    factor: float = 1.0

    def __call__(self, x: mx.array, offsets: mx.array) -> mx.array:
        """Rotate queries or keys (B, H, L, D). Token i of a row has position offset + i.

        offsets: (B,), or (1,) for all rows.
        """
        if len(offsets) < len(x):
            offsets = offsets.squeeze(0)  # unless it is a scalar, Metal reads an offset for every row
        width = x.shape[-1]
        return mx.fast.rope(x, width, traditional=False, base=self.base, scale=1 / self.factor, offset=offsets)


@dataclass(frozen=True)
class Window:
    """How many positions before and after its own a query attends to. None means no limit."""

    past: int | None = None
    future: int | None = None

    def masked(self, offsets: mx.array, length: int, capacity: int) -> mx.array | None:
        """Return a mask of the keys outside each query's window. Token i of a row has position offset + i.

        Args:
            offsets: (B,), or (1,) for all rows.

        Returns:
            Bool, (B, 1, length, capacity), or None if the window includes all keys.
        """
        past = None if self.past is None or self.past >= capacity - 1 else self.past
        future = None if self.future is None or self.future >= capacity - 1 else self.future
        if past is None and future is None:
            return None
        numbers = np.arange(max(length, capacity), dtype=np.int32)  # constants, which a compiled pass need not compute
        queries = offsets[:, None, None, None] + mx.array(numbers[:length, None])
        distance = mx.array(numbers[:capacity]) - queries
        too_late = None if future is None else distance > future
        if past is None:
            return too_late
        too_early = distance < -past
        return too_early if too_late is None else too_late | too_early


def additive_mask(masked: mx.array | None, dtype: mx.Dtype) -> mx.array:
    """Return -inf where masked, 0 elsewhere."""
    if masked is None:
        return mx.zeros((1, 1, 1, 1), dtype)
    return mx.where(masked, mx.array(-mx.inf, dtype), mx.array(0, dtype))
