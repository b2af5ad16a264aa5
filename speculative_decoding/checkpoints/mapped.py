"""Files as maps: bytes come from the disk when they are touched, and go when they are released."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError


@dataclass(frozen=True)
class Extent:
    """Where some bytes lie in the file, and their CRC-32 if the file has one."""

    start: int
    nbytes: int
    crc: int | None = None

    @property
    def stop(self) -> int:
        return self.start + self.nbytes


def map_file(path: Path, kind: str) -> mmap.mmap:
    """The file's bytes, read-only. Raises `CheckpointError` that names the kind of file it should have been."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a readable {kind} file ({error})") from error


def release(data: mmap.mmap, extent: Extent) -> None:
    """Let go of mapped pages: they would count as resident memory, up to the size of the file."""
    start = extent.start - extent.start % mmap.PAGESIZE
    if extent.nbytes:
        data.madvise(mmap.MADV_DONTNEED, start, extent.stop - start)
