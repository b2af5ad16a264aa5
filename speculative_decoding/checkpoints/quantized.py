"""A checkpoint whose tensors are quantized when they are read."""

from __future__ import annotations

from collections.abc import Set

import mlx.core as mx

from .base import QUANTIZED_PARTS, Checkpoint, TensorInfo, part_name


class QuantizedCheckpoint(Checkpoint):
    """Quantizes some tensors of another checkpoint with MLX's affine quantization; other tensors are unchanged.

    `X.weight` contains packed integers; `X.scales` and `X.biases` contain one number per group.

    Args:
        names: Tensors to quantize.
        bits: 4 or 8.
        group_size: Columns per group.
    """

    def __init__(self, inner: Checkpoint, names: Set[str], bits: int, group_size: int) -> None:
        self._inner = inner
        self._bits = bits
        self._group_size = group_size
        self._origin: dict[str, tuple[str, int]] = {}  # part name -> original tensor, index in QUANTIZED_PARTS
        self._last: tuple[str, list[mx.array]] | None = None  # callers read a tensor's three parts consecutively

        infos: dict[str, TensorInfo] = {}
        for name in inner:
            info = inner.info(name)
            if name not in names:
                infos[name] = info
                continue
            rows, columns = info.shape
            packed = TensorInfo((rows, columns * bits // 32), mx.uint32)
            groups = TensorInfo((rows, columns // group_size), info.dtype)
            for index, (part, part_info) in enumerate(zip(QUANTIZED_PARTS, (packed, groups, groups), strict=True)):
                infos[part_name(name, part)] = part_info
                self._origin[part_name(name, part)] = name, index
        super().__init__(inner, infos)

    def __getitem__(self, name: str) -> mx.array:
        if name not in self._origin:
            return self._inner[name]
        original, index = self._origin[name]
        if self._last is None or self._last[0] != original:
            self._last = None  # free the previous tensor before reading the next
            parts = mx.quantize(self._inner[original], group_size=self._group_size, bits=self._bits)
            mx.eval(parts)
            self._last = original, list(parts)
        return self._last[1][index]
