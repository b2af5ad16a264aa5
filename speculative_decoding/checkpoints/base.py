"""What every checkpoint reader returns, and checkpoints made of others: cast, quantised. Knows nothing of models."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import mlx.core as mx

# MLX counts a dimension in int32, and numpy has 64 at most; no model comes near either.
MAX_DIMENSION = (1 << 31) - 1
MAX_DIMENSIONS = 16
QUANTIZED_PARTS = ("weight", "scales", "biases")  # of a quantised matrix


@dataclass(frozen=True)
class TensorInfo:
    """Shape and stored type of a tensor, known without reading its data."""

    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size

    def cast(self, dtype: mx.Dtype) -> TensorInfo:
        """In another floating-point type; integers stay what they are."""
        return TensorInfo(self.shape, dtype) if mx.issubdtype(self.dtype, mx.floating) else self

    @property
    def has_valid_shape(self) -> bool:
        return len(self.shape) <= MAX_DIMENSIONS and all(0 <= size <= MAX_DIMENSION for size in self.shape)


@dataclass(frozen=True)
class Shard:
    """Of `pieces` equal pieces along an axis, the one with this index."""

    axis: int
    pieces: int
    index: int

    def of(self, shape: Sequence[int]) -> tuple[int, int]:
        """Where it begins, and how long it is."""
        count = shape[self.axis] // self.pieces
        return self.index * count, count

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[: self.axis], shape[self.axis] // self.pieces, *shape[self.axis + 1 :])


class Checkpoint(Mapping[str, mx.array]):
    """A read-only mapping from Hugging Face tensor names to arrays.

    Lazy: ``checkpoint[name]`` reads that one tensor and returns a new array each time. Nothing is kept, so memory
    is what the caller holds on to. Malformed files raise `CheckpointError`, never anything else.

    source: what messages name, as a rule the file.
    """

    def __init__(self, source: object, infos: Mapping[str, TensorInfo]) -> None:
        self._source, self._infos = source, infos

    @abstractmethod
    def __getitem__(self, name: str) -> mx.array: ...

    def read_shard(self, name: str, shard: Shard) -> mx.array:
        """A part of a tensor; where the format allows it nothing else is read."""
        start, count = shard.of(self.info(name).shape)
        return mx.take(self[name], mx.arange(start, start + count), axis=shard.axis)  # a copy: the rest is given back

    def info(self, name: str) -> TensorInfo:
        """Shape and stored type, without reading the data. Raises KeyError for an unknown name."""
        return self._infos[name]

    def __contains__(self, name: object) -> bool:
        """Mapping's own would read the tensor."""
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __str__(self) -> str:
        return str(self._source)


class CastCheckpoint(Checkpoint):
    """Another checkpoint with its floating-point tensors in `dtype`; quantised integers stay what they are."""

    def __init__(self, inner: Checkpoint, dtype: mx.Dtype) -> None:
        self._inner = inner
        super().__init__(inner, {name: inner.info(name).cast(dtype) for name in inner})

    def __getitem__(self, name: str) -> mx.array:
        return self._inner[name].astype(self.info(name).dtype)

    def read_shard(self, name: str, shard: Shard) -> mx.array:
        return self._inner.read_shard(name, shard).astype(self.info(name).dtype)


def part_name(name: str, kind: str) -> str:
    """`X.weight` -> `X.scales` or `X.biases`."""
    return name.removesuffix("weight") + kind


class QuantizedCheckpoint(Checkpoint):
    """`names` are quantised to `bits` (4 or 8) in groups of `group_size` columns; the rest passes through.

    MLX's affine quantisation: `X.weight` holds packed integers, `X.scales` and `X.biases` one number per group.
    """

    def __init__(self, inner: Checkpoint, names: Set[str], bits: int, group_size: int) -> None:
        self._inner, self._bits, self._group_size = inner, bits, group_size
        self._origin: dict[str, tuple[str, int]] = {}  # name of a part -> tensor, and which of QUANTIZED_PARTS
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
            for index, (kind, part_info) in enumerate(zip(QUANTIZED_PARTS, (packed, numbers, numbers), strict=True)):
                infos[part_name(name, kind)] = part_info
                self._origin[part_name(name, kind)] = name, index
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
