"""Zip files whose entries are stored uncompressed, so that they can be mapped: torch's `.bin` and our `.npz`.

Python's zipfile is lenient where a checkpoint should be refused: entries that overlap, appear twice or lead elsewhere.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..errors import CheckpointError
from .mapped import Extent, release

ZIP_START = b"PK\x03\x04"
ZIP_ENCRYPTED = 1
# Fields that nothing here needs are skipped (x).
ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of name and extra field
ZIP_ENTRY = struct.Struct("<4s4xHH4xLLLHHHH6xL")  # ..., flags, method, CRC-32, two sizes, three lengths, disk, header
ZIP_END = struct.Struct("<12xLL2x")  # size of the directory, its start
ZIP64_LOCATOR = struct.Struct("<8xQ4x")  # start of the zip64 end
ZIP64_END = struct.Struct("<4s36xQQ")  # signature, size of the directory, its start
MAX_ZIP_DIRECTORY_BYTES = 4 << 20  # 40,000 entries; T5-11B has some 500
CHUNK_BYTES = 8 << 20


def verify(path: Path, data: mmap.mmap, name: str, extent: Extent) -> None:
    """Compare the CRC-32, a chunk at a time so that memory stays bounded."""
    crc = 0
    for start in range(extent.start, extent.stop, CHUNK_BYTES):
        chunk = Extent(start, min(CHUNK_BYTES, extent.stop - start))
        with memoryview(data) as view, view[chunk.start : chunk.stop] as piece:
            crc = zlib.crc32(piece, crc)
        release(data, chunk)
    if crc != extent.crc:
        raise CheckpointError(f"{path}: {name!r} is damaged, CRC-32 {crc:08x} instead of {extent.crc:08x}")


def zip_entries(path: Path, data: mmap.mmap) -> dict[str, Extent]:
    """Each entry's name and where its data lies. Whatever `unzip` might read differently is refused."""
    try:
        return dict(read_entries(path, data))
    except (struct.error, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: the zip directory is damaged or cut short ({error})") from error


def read_entries(path: Path, data: mmap.mmap) -> Iterator[tuple[str, Extent]]:
    directory_stop, size, start = zip_directory(path, data)
    if start + size != directory_stop or size > MAX_ZIP_DIRECTORY_BYTES:
        raise CheckpointError(f"{path}: the zip directory does not end where it should, or is too large")
    names, extents, position = set(), [], start
    while position < directory_stop:
        signature, flags, method, crc, packed, nbytes, name_size, extra_size, comment_size, _, header = (
            ZIP_ENTRY.unpack_from(data, position)
        )
        position += ZIP_ENTRY.size
        raw_name = data[position : position + name_size]
        extra = data[position + name_size : position + name_size + extra_size]
        position += name_size + extra_size + comment_size
        name = raw_name.decode("utf-8")
        nbytes, packed, header = zip64_fields(extra, nbytes, packed, header)
        if signature != b"PK\x01\x02" or method != 0 or flags & ZIP_ENCRYPTED or packed != nbytes:
            raise CheckpointError(f"{path}: zip entry {name!r} is compressed, encrypted or damaged")
        if name in names or "\\" in name or "\0" in name or {"", ".", ".."} & set(name.split("/")):
            raise CheckpointError(f"{path}: zip entry {name!r} stands in it twice, or is no path inside the file")
        names.add(name)
        header = min(header, start)  # where no entry can be
        signature, local_name_size, local_extra_size = ZIP_LOCAL_HEADER.unpack_from(data, header)
        name_start = header + ZIP_LOCAL_HEADER.size
        if signature != ZIP_START or data[name_start : name_start + local_name_size] != raw_name:
            raise CheckpointError(f"{path}: zip entry {name!r} does not lie where the directory says")
        extent = Extent(name_start + local_name_size + local_extra_size, nbytes, crc)
        extents.append((header, extent.stop, name))
        yield name, extent
    if position != directory_stop:
        raise CheckpointError(f"{path}: the last entry of the zip directory is cut short")
    extents.sort()
    for (_, stop, name), (following, _, _) in zip(extents, [*extents[1:], (start, start, "")], strict=True):
        if stop > following:
            raise CheckpointError(f"{path}: zip entry {name!r} overlaps what follows it")


def zip_directory(path: Path, data: mmap.mmap) -> tuple[int, int, int]:
    """Where the directory must end; its size and start, as the records at the end of the file say."""
    end = len(data) - ZIP_END.size
    locator = end - ZIP64_LOCATOR.size
    if locator < 0 or data[end : end + 4] != b"PK\x05\x06":
        raise CheckpointError(f"{path}: the end of the zip file is missing; it is cut short, or has a comment")
    short = ZIP_END.unpack_from(data, end)
    if data[locator : locator + 4] != b"PK\x06\x07":
        return end, *short
    (end64,) = ZIP64_LOCATOR.unpack_from(data, locator)
    if end64 + ZIP64_END.size != locator:
        raise CheckpointError(f"{path}: the zip64 end does not lie where its locator says")
    signature, *long = ZIP64_END.unpack_from(data, end64)
    agree = all(field in (value, 0xFFFFFFFF) for field, value in zip(short, long, strict=True))
    if signature != b"PK\x06\x06" or not agree:
        raise CheckpointError(f"{path}: the zip64 end is damaged, or disagrees with the short one")
    return end64, *long


def zip64_fields(extra: bytes, *fields: int) -> Iterator[int]:
    """A field that is full holds its value in the extra field instead, one after another in this order."""
    position, values = 0, b""
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        if kind == 1:
            values = extra[position + 4 : position + 4 + size]
        position += 4 + size
    for field in fields:
        if field == 0xFFFFFFFF:
            (field,), values = struct.unpack_from("<Q", values), values[8:]
        yield field
