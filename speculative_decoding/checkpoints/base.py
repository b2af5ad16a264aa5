"""What every checkpoint reader returns. Knows nothing of models."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import mlx.core as mx

# MLX counts a dimension in int32, and numpy has 64 at most; no model comes near either.
MAX_DIMENSION = (1 << 31) - 1
MAX_DIMENSIONS = 16


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
    def has_sound_shape(self) -> bool:
        return len(self.shape) <= MAX_DIMENSIONS and all(0 <= size <= MAX_DIMENSION for size in self.shape)


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
