"""The mapping that every checkpoint reader returns, and wrappers that cast or quantize it. Knows nothing of models."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import mlx.core as mx

MAX_DIMENSION = (1 << 31) - 1  # MLX stores a dimension in an int32
MAX_DIMENSIONS = 16  # numpy allows 64; no model needs more than 4
QUANTIZED_PARTS = ("weight", "scales", "biases")


@dataclass(frozen=True)
class TensorInfo:
    """Shape and stored dtype of a tensor, known without reading its data."""

    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size

    @property
    def has_valid_shape(self) -> bool:
        return len(self.shape) <= MAX_DIMENSIONS and all(0 <= size <= MAX_DIMENSION for size in self.shape)


@dataclass(frozen=True)
class Shard:
    """Piece number `index` of a tensor that is split into `pieces` equal pieces along `axis`."""

    axis: int
    pieces: int
    index: int

    def size(self, shape: Sequence[int]) -> int:
        """Length of the piece along the axis."""
        return shape[self.axis] // self.pieces

    def start(self, shape: Sequence[int]) -> int:
        """First index of the piece along the axis."""
        return self.index * self.size(shape)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the piece, given the shape of the whole tensor."""
        return (*shape[: self.axis], self.size(shape), *shape[self.axis + 1 :])


class Checkpoint(Mapping[str, mx.array]):
    """A read-only, lazy mapping from Hugging Face tensor names to arrays.

    ``checkpoint[name]`` reads that tensor and returns a new array each time. Nothing is cached, so only the arrays that
    the caller keeps use memory. A malformed file raises `CheckpointError` and no other error.

    Args:
        source: What error messages name, usually the file.
        infos: Shape and dtype of each tensor.
    """

    def __init__(self, source: object, infos: Mapping[str, TensorInfo]) -> None:
        self._source = source
        self._infos = infos

    @abstractmethod
    def __getitem__(self, name: str) -> mx.array: ...

    def read_shard(self, name: str, shard: Shard) -> mx.array:
        """Read one piece of a tensor. Subclasses read only that piece from disk if their format allows it."""
        start = shard.start(self.info(name).shape)
        size = shard.size(self.info(name).shape)
        # take() copies, so the rest of the tensor is freed
        return mx.take(self[name], mx.arange(start, start + size), axis=shard.axis)

    def is_same(self, first: str, second: str) -> bool:
        """Return whether two tensors are equal. Subclasses avoid reading them where their format allows it."""
        return self.info(first).shape == self.info(second).shape and bool(
            mx.array_equal(self[first], self[second]).item()
        )

    def info(self, name: str) -> TensorInfo:
        """Return shape and stored dtype without reading the data. Raises KeyError for an unknown name."""
        return self._infos[name]

    def __contains__(self, name: object) -> bool:
        return name in self._infos  # Mapping's own method would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __str__(self) -> str:
        return str(self._source)


class RenamedCheckpoint(Checkpoint):
    """Another checkpoint's tensors under other names.

    Args:
        names: By new name, the tensor in the other checkpoint. Tensors that are not listed are hidden.
    """

    def __init__(self, inner: Checkpoint, names: Mapping[str, str]) -> None:
        self._inner = inner
        self._names = names
        super().__init__(inner, {name: inner.info(theirs) for name, theirs in names.items()})

    def __getitem__(self, name: str) -> mx.array:
        return self._inner[self._names[name]]

    def read_shard(self, name: str, shard: Shard) -> mx.array:
        return self._inner.read_shard(self._names[name], shard)

    def is_same(self, first: str, second: str) -> bool:
        return self._inner.is_same(self._names[first], self._names[second])


class CastCheckpoint(Checkpoint):
    """Casts the floating-point tensors of another checkpoint to `dtype`. Quantized integers are kept."""

    def __init__(self, inner: Checkpoint, dtype: mx.Dtype) -> None:
        self._inner = inner
        infos: dict[str, TensorInfo] = {}
        for name in inner:
            info = inner.info(name)
            infos[name] = TensorInfo(info.shape, dtype) if mx.issubdtype(info.dtype, mx.floating) else info
        super().__init__(inner, infos)

    def __getitem__(self, name: str) -> mx.array:
        return self._inner[name].astype(self.info(name).dtype)

    def read_shard(self, name: str, shard: Shard) -> mx.array:
        return self._inner.read_shard(name, shard).astype(self.info(name).dtype)


def part_name(name: str, part: str) -> str:
    """Return the name of a quantized part: `X.weight` -> `X.scales` or `X.biases`."""
    return name.removesuffix("weight") + part


class QuantizedCheckpoint(Checkpoint):
    """Quantizes some tensors of another checkpoint with MLX's affine quantization; other tensors are unchanged.

    `X.weight` holds packed integers; `X.scales` and `X.biases` hold one number per group.

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
        self._last: tuple[str, list[mx.array]] | None = None  # callers read the three parts in a row

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
