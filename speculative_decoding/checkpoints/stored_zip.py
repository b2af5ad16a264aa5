"""Zip files whose entries are stored uncompressed, so that they can be mapped: torch's `.bin` and our `.npz`.

Python's zipfile reads the directory, but accepts what a checkpoint should be refused for: entries that overlap, appear
twice or lead elsewhere, and a directory as large as it claims to be.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from io import FileIO

from .mapped import Extent, MappedFile

ZIP_START = b"PK\x03\x04"
ZIP_ENCRYPTED, ZIP_UTF8 = 0x1, 0x800
ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of name and extra field; the rest is skipped
MAX_ZIP_DIRECTORY_BYTES = 4 << 20  # 40,000 entries; T5-11B has some 500
CHUNK_BYTES = 8 << 20


class BoundedFile(FileIO):
    """Reads no more at once than the largest directory; zipfile refuses a larger one as cut short."""

    def read(self, size: int | None = -1, /) -> bytes:
        bounded = MAX_ZIP_DIRECTORY_BYTES if size is None or size < 0 else min(size, MAX_ZIP_DIRECTORY_BYTES)
        return super().read(bounded) or b""


def zip_entries(file: MappedFile) -> dict[str, Extent]:
    """Each entry's name and where its data lies. Whatever `unzip` might read differently is refused."""
    try:
        with BoundedFile(file.path) as bounded, zipfile.ZipFile(bounded) as archive:
            entries, directory_start, comment = archive.infolist(), archive.start_dir, archive.comment
    except (zipfile.BadZipFile, NotImplementedError, OSError, OverflowError, ValueError, struct.error) as error:
        raise file.error(f"the zip directory is damaged or cut short ({error})") from error
    if comment:
        raise file.error("a zip file with a comment")
    extents, stop = dict[str, Extent](), 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        name, start = entry.filename, entry.header_offset + ZIP_LOCAL_HEADER.size
        is_plain = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & ZIP_ENCRYPTED
        if not is_plain or entry.compress_size != entry.file_size:
            raise file.error(f"zip entry {name!r} is compressed, encrypted or damaged")
        if name in extents or name != entry.orig_filename or "\\" in name or {"", ".", ".."} & set(name.split("/")):
            raise file.error(f"zip entry {name!r} appears twice, or is no path inside the file")
        if entry.header_offset < stop or start > directory_start:
            raise file.error(f"zip entry {name!r} overlaps another, or the directory")
        signature, name_size, extra_size = ZIP_LOCAL_HEADER.unpack_from(file.data, entry.header_offset)
        raw_name = name.encode("utf-8" if entry.flag_bits & ZIP_UTF8 else "cp437")
        if signature != ZIP_START or file.data[start : start + name_size] != raw_name:
            raise file.error(f"zip entry {name!r} does not lie where the directory says")
        extents[name] = Extent(start + name_size + extra_size, entry.file_size, entry.CRC)
        stop = extents[name].stop
    if stop > directory_start:
        raise file.error("the last zip entry reaches into the directory")
    return extents


def verify(file: MappedFile, name: str, extent: Extent) -> None:
    """Compare the CRC-32, a chunk at a time so that memory stays bounded."""
    crc = 0
    for start in range(extent.start, extent.stop, CHUNK_BYTES):
        chunk = Extent(start, min(CHUNK_BYTES, extent.stop - start))
        crc = zlib.crc32(memoryview(file.data)[chunk.start : chunk.stop], crc)
        file.release(chunk)
    if crc != extent.crc:
        raise file.error(f"{name!r} is damaged, CRC-32 {crc:08x} instead of {extent.crc:08x}")
