"""The mapping that every checkpoint reader returns, and a view that renames or casts its tensors."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import mlx.core as mx

MAX_DIMENSION = (1 << 31) - 1  # MLX stores a dimension in an int32
MAX_DIMENSIONS = 16  # numpy allows 64; no model needs more than 4
QUANTIZED_PARTS = ("weight", "scales", "biases")


@dataclass(frozen=True)
class TensorInfo:
    """Shape and stored dtype of a tensor, available without reading its data."""

    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size


class Checkpoint(Mapping[str, mx.array]):
    """A read-only, lazy mapping from Hugging Face tensor names to arrays.

    ``checkpoint[name]`` reads that tensor and returns a new array each time. Nothing is cached, so only the arrays that
    the caller keeps use memory. A malformed file raises `CheckpointError` and no other error.

    Args:
        source: The checkpoint's name in error messages, usually the file.
        infos: Shape and dtype of each tensor.
    """

    def __init__(self, source: object, infos: Mapping[str, TensorInfo]) -> None:
        self._source = source
        self._infos = infos

    @abstractmethod
    def __getitem__(self, name: str) -> mx.array: ...

    def read_slice(self, name: str, axis: int, start: int, stop: int) -> mx.array:
        """Read a slice of a tensor along an axis. Subclasses read only that slice if their format allows it."""
        return mx.take(self[name], mx.arange(start, stop), axis=axis)  # a copy, so the rest of the tensor is freed

    def is_same(self, first: str, second: str) -> bool:
        """Return whether two tensors are equal. Subclasses avoid reading the data if their format allows it."""
        return self.info(first).shape == self.info(second).shape and bool(
            mx.array_equal(self[first], self[second]).item()
        )

    def info(self, name: str) -> TensorInfo:
        """Return shape and stored dtype without reading the data. Raises KeyError for an unknown name."""
        return self._infos[name]

    def __contains__(self, name: object) -> bool:
        return name in self._infos  # `Mapping.__contains__` would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __str__(self) -> str:
        return str(self._source)


class CheckpointView(Checkpoint):
    """A view of another checkpoint's tensors, with other names or another dtype.

    Args:
        names: Maps new names to the original names. Tensors that are not listed are hidden. None keeps all names.
        dtype: The dtype to cast floating-point tensors to; quantized integers are kept. None keeps the stored dtypes.
    """

    def __init__(
        self, inner: Checkpoint, names: Mapping[str, str] | None = None, dtype: mx.Dtype | None = None
    ) -> None:
        self._inner = inner
        self._names = {name: name for name in inner} if names is None else names
        self._dtype = dtype
        infos = {name: inner.info(theirs) for name, theirs in self._names.items()}
        if dtype is not None:
            numbers = {name: info for name, info in infos.items() if mx.issubdtype(info.dtype, mx.floating)}
            infos |= {name: TensorInfo(info.shape, dtype) for name, info in numbers.items()}
        super().__init__(inner, infos)

    def __getitem__(self, name: str) -> mx.array:
        array = self._inner[self._names[name]]
        return array if self._dtype is None else array.astype(self.info(name).dtype)

    def read_slice(self, name: str, axis: int, start: int, stop: int) -> mx.array:
        part = self._inner.read_slice(self._names[name], axis, start, stop)
        return part if self._dtype is None else part.astype(self.info(name).dtype)

    def is_same(self, first: str, second: str) -> bool:
        return self._inner.is_same(self._names[first], self._names[second])


def part_name(name: str, part: str) -> str:
    """Return the name of one part of a quantized tensor: `X.weight` -> `X.scales` or `X.biases`."""
    return name.removesuffix("weight") + part
