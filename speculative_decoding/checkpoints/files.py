"""Safe access to untrusted files: regular files only, JSON of bounded size and depth, memory-mapped tensor data."""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError
from .base import TensorInfo

MAX_JSON_BYTES = 4 << 20  # the largest known index of weight files is about 100 KB
MAX_JSON_DEPTH = 32
CHUNK_BYTES = 16 << 20  # of a tensor that is compared


def open_regular(path: Path, max_bytes: int | None = None) -> BufferedReader:
    """Open a regular file. Raises `CheckpointError`, also for a file larger than `max_bytes`."""
    try:
        return open_if_regular(path, max_bytes)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def open_if_regular(path: Path, max_bytes: int | None = None) -> BufferedReader:
    """Open a regular file, or raise `OSError`. Pipes would block and devices may be endless."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if max_bytes is not None and status.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
    # O_NONBLOCK: if a pipe has replaced the file since stat(), opening it must not block
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file with one JSON object of bounded size and depth. Raises `CheckpointError`."""
    with open_regular(path, MAX_JSON_BYTES) as file:
        text = file.read(MAX_JSON_BYTES)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict) or not is_shallow(content):
        raise CheckpointError(f"{path}: not a JSON object with at most {MAX_JSON_DEPTH} levels")
    return content


def is_shallow(content: Any) -> bool:
    """Check for at most `MAX_JSON_DEPTH` levels. Python can parse deeper JSON, but may fail to write it again."""
    level = [content]
    for _ in range(MAX_JSON_DEPTH):
        containers = [value for value in level if isinstance(value, dict | list)]
        level = [child for value in containers for child in (value.values() if isinstance(value, dict) else value)]
    return not level


@dataclass(frozen=True)
class ByteRange:
    """Position of some bytes in a file, and their CRC-32 if the file stores one."""

    start: int
    nbytes: int
    crc: int | None = None

    @property
    def stop(self) -> int:
        return self.start + self.nbytes


class MappedFile:
    """A read-only memory map. Pages are read from disk when accessed and freed by `release`.

    Args:
        path: The file. `CheckpointError` is raised if it cannot be mapped.
        kind: The expected format, for the error message.
    """

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
        self, info: TensorInfo, location: ByteRange, offset: int = 0, strides: tuple[int, ...] | None = None
    ) -> mx.array:
        """Copy little-endian numbers from the map into a new array.

        MLX supports float64 on the CPU only, so float64 becomes float32.

        Args:
            info: Shape and dtype of the array.
            location: Bytes of the tensor, or of the storage that the tensor is a view of.
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

    def is_same(self, first: ByteRange, second: ByteRange) -> bool:
        """Compare bytes up to the first difference, in chunks so that memory stays bounded."""
        if first.nbytes != second.nbytes:
            return False
        for start in range(0, first.nbytes, CHUNK_BYTES):
            size = min(CHUNK_BYTES, first.nbytes - start)
            chunks = [ByteRange(location.start + start, size) for location in (first, second)]
            ours, theirs = (np.ndarray((size,), np.uint8, self.data, chunk.start) for chunk in chunks)
            if not np.array_equal(ours, theirs):
                return False
            for chunk in chunks:
                self.release(chunk)
        return True

    def release(self, location: ByteRange) -> None:
        """Free mapped pages. Otherwise they count as resident memory, up to the size of the file."""
        start = location.start - location.start % mmap.PAGESIZE
        if location.nbytes:
            self.data.madvise(mmap.MADV_DONTNEED, start, location.stop - start)
