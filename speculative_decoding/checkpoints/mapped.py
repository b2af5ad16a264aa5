"""Files as maps: bytes come from the disk when they are touched, and leave memory when they are released."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError
from .base import Checkpoint, TensorInfo
from .files import open_regular

BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Extent:
    """Where some bytes lie in the file, and their CRC-32 if the file has one."""

    start: int
    nbytes: int
    crc: int | None = None

    @property
    def stop(self) -> int:
        return self.start + self.nbytes


class MappedFile:
    """A file's bytes, read-only. Raises `CheckpointError` that names the kind of file it should have been."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise self.error(f"not a readable {kind} file ({error})") from error

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {problem}")

    def array(
        self, info: TensorInfo, extent: Extent, offset: int = 0, strides: tuple[int, ...] | None = None
    ) -> mx.array:
        """A new array from the little-endian numbers in an extent, in C order unless there are strides.

        offset, strides: count elements. float64 comes out as float32: MLX computes in float64 on the CPU only.
        """
        size = info.dtype.size
        steps = None if strides is None else [stride * size for stride in strides]
        # As integers, because numpy has no bfloat16.
        bits = np.ndarray(info.shape, BITS[size], self.data, extent.start + offset * size, steps)
        bits = np.ascontiguousarray(bits).reshape(info.shape)
        if info.dtype == mx.float64:
            array = mx.array(bits.view(np.float64).astype(np.float32))
        else:
            array = mx.array(bits)
            array = array != 0 if info.dtype == mx.bool_ else array.view(info.dtype)
        self.release(extent)
        return array

    def release(self, extent: Extent) -> None:
        """Free mapped pages, which would count as resident memory, up to the size of the file."""
        start = extent.start - extent.start % mmap.PAGESIZE
        if extent.nbytes:
            self.data.madvise(mmap.MADV_DONTNEED, start, extent.stop - start)


class MappedCheckpoint(Checkpoint):
    """Tensors whose numbers lie in one file, in C order."""

    def __init__(self, file: MappedFile, tensors: Mapping[str, tuple[TensorInfo, Extent]]) -> None:
        super().__init__(file.path, {name: info for name, (info, _) in tensors.items()})
        self._file = file
        self._extents = {name: extent for name, (_, extent) in tensors.items()}

    def __getitem__(self, name: str) -> mx.array:
        return self._file.array(self.info(name), self._extents[name])
