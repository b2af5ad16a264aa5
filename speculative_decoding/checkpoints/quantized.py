"""A checkpoint whose matrices are quantised on the way out: in memory or into a file, it is the same mapping.

MLX's affine quantisation: `X.weight` holds packed integers, `X.scales` and `X.biases` one number per group of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import mlx.core as mx

from .base import Checkpoint, TensorInfo

PARTS = ("weight", "scales", "biases")


def part(name: str, kind: str) -> str:
    """`X.weight` -> `X.scales` or `X.biases`."""
    return name.removesuffix("weight") + kind


class QuantizedCheckpoint(Checkpoint):
    """`names` are quantised to `bits` (4 or 8) in groups of `group_size` columns; the rest passes through."""

    def __init__(self, inner: Checkpoint, names: Set[str], bits: int, group_size: int) -> None:
        self._inner, self._names, self._bits, self._group_size = inner, names, bits, group_size
        self._origin = {part(name, kind): (name, i) for name in names for i, kind in enumerate(PARTS)}
        self._last: tuple[str, list[mx.array]] | None = None  # the three parts are asked for one after another

    def info(self, name: str) -> TensorInfo:
        if name not in self._origin:
            return self._inner.info(name)
        original, kind = self._origin[name]
        stored = self._inner.info(original)
        rows, columns = stored.shape
        if kind == 0:
            return TensorInfo((rows, columns * self._bits // 32), mx.uint32)
        return TensorInfo((rows, columns // self._group_size), stored.dtype)

    def __getitem__(self, name: str) -> mx.array:
        if name not in self._origin:
            return self._inner[name]
        original, kind = self._origin[name]
        if self._last is None or self._last[0] != original:
            self._last = None  # let go of the last tensor before the next is read
            parts = mx.quantize(self._inner[original], group_size=self._group_size, bits=self._bits)
            mx.eval(parts)
            self._last = original, list(parts)
        return self._last[1][kind]

    def __iter__(self) -> Iterator[str]:
        for name in self._inner:
            yield from (part(name, kind) for kind in PARTS) if name in self._names else (name,)

    def __len__(self) -> int:
        return len(self._inner) + 2 * len(self._names)

    def __str__(self) -> str:
        return str(self._inner)
