"""Memory-mapped tensor files, for formats that store numbers uncompressed.

A `location` is a `range` of byte positions in the file.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError
from .base import MAX_DIMENSION, MAX_DIMENSIONS, Checkpoint, TensorInfo
from .files import open_regular

CHUNK_BYTES = 16 << 20  # bytes to compare at a time


class MappedFile:
    """A read-only memory map. Pages are read from disk when accessed and freed by `release`.

    Args:
        path: The file. `CheckpointError` is raised if it cannot be mapped.
        format_name: The expected format, for the error message.
    """

    def __init__(self, path: Path, format_name: str) -> None:
        self.path = path
        with open_regular(path) as file:
            try:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise self.error(f"not a readable {format_name} file ({error})") from error

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {problem}")

    def array(
        self, info: TensorInfo, location: range, offset: int = 0, strides: tuple[int, ...] | None = None
    ) -> mx.array:
        """Copy little-endian numbers from the map into a new array.

        MLX supports float64 only on the CPU, so float64 is converted to float32.

        Args:
            info: Shape and dtype of the array.
            location: Bytes of the tensor, or of the storage of which it is a view.
            offset: First element within `location`.
            strides: Strides in elements. The default is C order.
        """
        item_size = info.dtype.size
        byte_strides = None if strides is None else [stride * item_size for stride in strides]
        unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[item_size]  # numpy has no bfloat16
        bits = np.ndarray(info.shape, unsigned, self.data, location.start + offset * item_size, byte_strides)
        bits = np.ascontiguousarray(bits).reshape(info.shape)

        if info.dtype == mx.float64:
            array = mx.array(bits.view(np.float64).astype(np.float32))
        elif info.dtype == mx.bool_:
            array = mx.array(bits) != 0
        else:
            array = mx.array(bits).view(info.dtype)
        self.release(location)
        return array

    def is_same(self, first: range, second: range) -> bool:
        """Return whether two locations hold equal bytes. Compares in chunks to bound memory use."""
        if len(first) != len(second):
            return False
        for start in range(0, len(first), CHUNK_BYTES):
            chunks = [location[start : start + CHUNK_BYTES] for location in (first, second)]
            ours, theirs = (np.ndarray((len(chunk),), np.uint8, self.data, chunk.start) for chunk in chunks)
            if not np.array_equal(ours, theirs):
                return False
            for chunk in chunks:
                self.release(chunk)
        return True

    def release(self, location: range) -> None:
        """Free mapped pages. Otherwise, the whole file could end up in resident memory."""
        start = location.start - location.start % mmap.PAGESIZE
        if location:
            self.data.madvise(mmap.MADV_DONTNEED, start, location.stop - start)


class MappedCheckpoint(Checkpoint):
    """Tensors stored contiguously in one mapped file, in C order. Raises `CheckpointError` for impossible shapes."""

    def __init__(self, file: MappedFile, tensors: Mapping[str, tuple[TensorInfo, range]]) -> None:
        for name, (info, _) in tensors.items():
            if len(info.shape) > MAX_DIMENSIONS or not all(0 <= size <= MAX_DIMENSION for size in info.shape):
                raise file.error(f"tensor {name!r}: unsupported shape {info.shape}")
        super().__init__(file.path, {name: info for name, (info, _) in tensors.items()})
        self._file = file
        self._locations = {name: location for name, (_, location) in tensors.items()}

    def __getitem__(self, name: str) -> mx.array:
        return self._file.array(self.info(name), self._locations[name])

    def read_slice(self, name: str, axis: int, start: int, stop: int) -> mx.array:
        info = self.info(name)
        strides = tuple(math.prod(info.shape[each + 1 :]) for each in range(len(info.shape)))
        part = TensorInfo((*info.shape[:axis], stop - start, *info.shape[axis + 1 :]), info.dtype)
        return self._file.array(part, self._locations[name], start * strides[axis], strides)

    def is_same(self, first: str, second: str) -> bool:
        if self.info(first) != self.info(second):
            return super().is_same(first, second)
        return self._file.is_same(self._locations[first], self._locations[second])
