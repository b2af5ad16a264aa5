"""A checkpoint whose matrices are quantised as they are read; conversion and loading use the same.

MLX's affine quantisation: `X.weight` holds packed integers, `X.scales` and `X.biases` one number per group of columns.
"""

from __future__ import annotations

from collections.abc import Set

import mlx.core as mx

from .base import Checkpoint, TensorInfo

PARTS = ("weight", "scales", "biases")


def part(name: str, kind: str) -> str:
    """`X.weight` -> `X.scales` or `X.biases`."""
    return name.removesuffix("weight") + kind


class QuantizedCheckpoint(Checkpoint):
    """`names` are quantised to `bits` (4 or 8) in groups of `group_size` columns; the rest passes through."""

    def __init__(self, inner: Checkpoint, names: Set[str], bits: int, group_size: int) -> None:
        self._inner, self._bits, self._group_size = inner, bits, group_size
        self._origin: dict[str, tuple[str, int]] = {}  # name of a part -> tensor, and which of PARTS
        self._last: tuple[str, list[mx.array]] | None = None  # the three parts are read one after another
        infos = dict[str, TensorInfo]()
        for name in inner:
            info = inner.info(name)
            if name not in names:
                infos[name] = info
                continue
            rows, columns = info.shape
            numbers = TensorInfo((rows, columns // group_size), info.dtype)
            packed = TensorInfo((rows, columns * bits // 32), mx.uint32)
            for index, (kind, part_info) in enumerate(zip(PARTS, (packed, numbers, numbers), strict=True)):
                infos[part(name, kind)] = part_info
                self._origin[part(name, kind)] = name, index
        super().__init__(inner, infos)

    def __getitem__(self, name: str) -> mx.array:
        if name not in self._origin:
            return self._inner[name]
        original, index = self._origin[name]
        if self._last is None or self._last[0] != original:
            self._last = None  # frees the last tensor before the next is read
            parts = mx.quantize(self._inner[original], group_size=self._group_size, bits=self._bits)
            mx.eval(parts)
            self._last = original, list(parts)
        return self._last[1][index]
