"""What every checkpoint reader returns. Knows nothing of models."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

NUMPY_TYPES: Mapping[mx.Dtype, type[np.generic]] = {
    mx.float32: np.float32,
    mx.float16: np.float16,
    mx.uint32: np.uint32,
}


@dataclass(frozen=True)
class TensorInfo:
    """Shape and stored type of a tensor, known without reading its data."""

    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.size


class Checkpoint(Mapping[str, mx.array]):
    """A read-only mapping from Hugging Face tensor names to arrays.

    Lazy: ``checkpoint[name]`` reads that one tensor and returns a new array each time. Nothing is kept, so memory
    is what the caller holds on to. Malformed files raise `CheckpointError`, never anything else.
    """

    @abstractmethod
    def info(self, name: str) -> TensorInfo:
        """Shape and stored type, without reading the data. Raises KeyError for an unknown name."""

    def __contains__(self, name: object) -> bool:
        """Mapping's own would read the tensor."""
        try:
            self.info(str(name))
        except KeyError:
            return False
        return True

    @abstractmethod
    def __getitem__(self, name: str) -> mx.array: ...

    @abstractmethod
    def __iter__(self) -> Iterator[str]: ...

    @abstractmethod
    def __len__(self) -> int: ...


def array_from_bytes(raw: NDArray[np.uint8], info: TensorInfo) -> mx.array:
    """Little-endian bytes -> a new array. float64 comes out as float32: MLX computes in float64 on the CPU only."""
    if info.dtype == mx.bfloat16:  # numpy has no bfloat16, so the bits travel as integers
        return mx.array(raw.view(np.uint16).reshape(info.shape)).view(mx.bfloat16)
    if info.dtype == mx.float64:
        return mx.array(raw.view(np.float64).reshape(info.shape).astype(np.float32))
    return mx.array(raw.view(NUMPY_TYPES[info.dtype]).reshape(info.shape))
