"""Positions as rotations (Su et al. 2021, "RoFormer", 2104.09864), and which keys a query at a position sees.

A key is rotated once, by the position that it is written at; so a cache holds rotated keys, and a rewind moves none.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Rope:
    """base: of the wavelengths. factor: by which positions are divided ("linear" scaling)."""

    base: float
    factor: float = 1.0

    def __call__(self, x: mx.array, offsets: mx.array) -> mx.array:
        """Queries or keys (B, H, L, D); token i of a row stands at position offset + i. offsets: (B,), or (1,)."""
        width = x.shape[-1]
        return mx.fast.rope(x, width, traditional=False, base=self.base, scale=1 / self.factor, offset=offsets)


@dataclass(frozen=True)
class Window:
    """How many positions before and behind its own a query sees; None: all of them."""

    past: int | None = None
    future: int | None = None

    def hidden(self, offsets: mx.array, length: int, reach: int) -> mx.array | None:
        """Which keys j < `reach` token i of a row, at position offset + i, does not see: bool, (B, 1, length, reach);
        None where all are seen.

        offsets: (B,), or (1,) for all rows.
        """
        past = None if self.past is None or self.past >= reach - 1 else self.past  # a short reach is all of it
        future = None if self.future is None or self.future >= reach - 1 else self.future
        if past is None and future is None:
            return None
        queries = offsets[:, None, None, None] + mx.arange(length)[:, None]
        ahead = mx.arange(reach) - queries
        too_late = None if future is None else ahead > future
        if past is None:
            return too_late
        return ahead < -past if too_late is None else too_late | (ahead < -past)


def additive_mask(hidden: mx.array | None, dtype: mx.Dtype) -> mx.array:
    """-inf where hidden, else 0."""
    if hidden is None:
        return mx.zeros((1, 1, 1, 1), dtype)
    return mx.where(hidden, mx.array(-mx.inf, dtype), mx.array(0, dtype))
