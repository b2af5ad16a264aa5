"""Files that somebody else made: only regular ones are opened. JSON within bounds; and maps, whose bytes come from the
disk when they are touched, and leave memory when they are released.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError
from .base import TensorInfo

MAX_JSON_BYTES = 4 << 20  # the largest index of shards has some 100 KB
MAX_JSON_DEPTH = 32
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def open_regular(path: Path, most: int | None = None) -> BinaryIO:
    """A pipe would wait for its writer, and a device may never end. Raises `CheckpointError`, also for a file of more
    than `most` bytes.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if most is not None and status.st_size > most:
            raise OSError(f"larger than {most} bytes")
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """A file with one JSON object, of bounded size and depth. Raises `CheckpointError`."""
    with open_regular(path, MAX_JSON_BYTES) as file:
        text = file.read(MAX_JSON_BYTES)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict) or not is_shallow(content):
        raise CheckpointError(f"{path}: no JSON object of at most {MAX_JSON_DEPTH} levels")
    return content


def is_shallow(content: Any) -> bool:
    """Of at most `MAX_JSON_DEPTH` levels. What is deeper Python could read, but not write again."""
    level = [content]
    for _ in range(MAX_JSON_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [child for children in inner for child in children]
    return not level


@dataclass(frozen=True)
class ByteRange:
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
        with open_regular(path) as file:
            try:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise self.error(f"not a readable {kind} file ({error})") from error

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {problem}")

    def array(
        self, info: TensorInfo, extent: ByteRange, offset: int = 0, strides: tuple[int, ...] | None = None
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

    def release(self, extent: ByteRange) -> None:
        """Free mapped pages, which would count as resident memory, up to the size of the file."""
        start = extent.start - extent.start % mmap.PAGESIZE
        if extent.nbytes:
            self.data.madvise(mmap.MADV_DONTNEED, start, extent.stop - start)
