"""Zip files with uncompressed entries, which can be memory-mapped: our own `.npz` (read and write) and torch's `.bin`.

Python's zipfile parses the zip directory, but accepts a directory of any size, as well as entries that overlap, share a
name, or have an unsafe path. `zip_entries` rejects all of these.

numpy has no bfloat16. Like MLX, this module writes bfloat16 as a two-byte void (`|V2`) and reads that back as bfloat16.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterable
from io import BytesIO, FileIO
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO

import mlx.core as mx
import numpy as np

from .base import Checkpoint, TensorInfo
from .mapped import MappedCheckpoint, MappedFile

ZIP_START = b"PK\x03\x04"
ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, name length, extra field length
MAX_ZIP_DIRECTORY_BYTES = 4 << 20  # enough for about 40,000 entries; T5-11B has about 500
CRC_CHUNK_BYTES = 8 << 20
DTYPES = {
    "<f4": mx.float32, "<f2": mx.float16, "|V2": mx.bfloat16, "<f8": mx.float64, "<u4": mx.uint32,
    "<i8": mx.int64,  # mlx-whisper's alignment heads
}  # fmt: skip


class BoundedFile(FileIO):
    """A file whose read() returns at most `MAX_ZIP_DIRECTORY_BYTES`, so that zipfile rejects a larger directory."""

    def read(self, size: int | None = -1, /) -> bytes:
        bounded = MAX_ZIP_DIRECTORY_BYTES if size is None or size < 0 else min(size, MAX_ZIP_DIRECTORY_BYTES)
        return super().read(bounded) or b""


def zip_entries(file: MappedFile) -> dict[str, tuple[range, int]]:
    """Map each entry's name to the location and CRC-32 of its data. Raises an error if the zip file is ambiguous."""
    try:
        with BoundedFile(file.path) as bounded, zipfile.ZipFile(bounded) as archive:
            entries = archive.infolist()
            directory_start = archive.start_dir
            comment = archive.comment
    except (zipfile.BadZipFile, NotImplementedError, OSError, OverflowError, ValueError, struct.error) as error:
        raise file.error(f"the zip directory is damaged or truncated ({error})") from error
    if comment:
        raise file.error("zip files with a comment are not supported")

    found: dict[str, tuple[range, int]] = {}
    stop = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        name = entry.filename
        is_encrypted = entry.flag_bits & 0x1
        is_utf8 = entry.flag_bits & 0x800
        if entry.compress_type != zipfile.ZIP_STORED or is_encrypted or entry.compress_size != entry.file_size:
            raise file.error(f"zip entry {name!r} is compressed, encrypted or damaged")
        if name in found or name != entry.orig_filename or "\\" in name or {"", ".", ".."} & set(name.split("/")):
            raise file.error(f"zip entry {name!r} appears twice or is not a path inside the file")

        name_start = entry.header_offset + ZIP_LOCAL_HEADER.size
        if entry.header_offset < stop or name_start > directory_start:
            raise file.error(f"zip entry {name!r} overlaps another entry or the directory")
        signature, name_size, extra_size = ZIP_LOCAL_HEADER.unpack_from(file.data, entry.header_offset)
        raw_name = name.encode("utf-8" if is_utf8 else "cp437")
        if signature != ZIP_START or file.data[name_start : name_start + name_size] != raw_name:
            raise file.error(f"zip entry {name!r} is not at the position that the directory gives")

        start = name_start + name_size + extra_size
        stop = start + entry.file_size
        found[name] = range(start, stop), entry.CRC
    if stop > directory_start:
        raise file.error("the last zip entry overlaps the directory")
    return found


def check_crc(file: MappedFile, name: str, location: range, expected: int) -> None:
    """Check the CRC-32 of an entry, in chunks so that memory stays bounded."""
    crc = 0
    for start in range(0, len(location), CRC_CHUNK_BYTES):
        chunk = location[start : start + CRC_CHUNK_BYTES]
        crc = zlib.crc32(memoryview(file.data)[chunk.start : chunk.stop], crc)
        file.release(chunk)
    if crc != expected:
        raise file.error(f"{name!r} is damaged (CRC-32 is {crc:08x}, expected {expected:08x})")


def read_npz(path: Path) -> Checkpoint:
    """Open a `.npz` file. CRCs are not checked: that takes longer than loading, and the manifest contains hashes."""
    file = MappedFile(path, ".npz")
    arrays: dict[str, tuple[TensorInfo, range]] = {}
    for entry, (location, _) in zip_entries(file).items():
        name = entry.removesuffix(".npy")
        if name in arrays:
            raise file.error(f"array {name!r} appears twice")
        arrays[name] = read_npy_header(file, entry, location)
    return MappedCheckpoint(file, arrays)


def read_npy_header(file: MappedFile, name: str, entry: range) -> tuple[TensorInfo, range]:
    """Parse the header of a `.npy` entry. Returns the array's shape and dtype, and the location of its numbers."""
    max_bytes = 4096
    header = BytesIO(file.data[entry.start : min(entry.stop, entry.start + max_bytes)])
    try:
        if np.lib.format.read_magic(header) != (1, 0):
            raise ValueError("not an .npy file of version 1.0")
        shape, fortran_order, numpy_dtype = np.lib.format.read_array_header_1_0(header)
    # numpy parses the header as Python source, so it may raise any of these errors
    except (ValueError, SyntaxError, TokenError, EOFError, TypeError, MemoryError, RecursionError) as error:
        raise file.error(f"entry {name!r} is damaged ({error})") from error

    dtype = DTYPES.get(numpy_dtype.str)
    is_transposed = fortran_order and len(shape) > 1  # MLX also sets fortran_order for one-dimensional arrays
    if dtype is None or is_transposed:
        raise file.error(f"entry {name!r} holds {numpy_dtype.str!r} of shape {shape}, which is not supported")
    info = TensorInfo(shape, dtype)
    if len(entry) != header.tell() + info.nbytes:
        raise file.error(f"entry {name!r} has {len(entry)} bytes, expected {header.tell() + info.nbytes}")
    return info, entry[header.tell() :]


def write_npz(file: Path | BinaryIO, arrays: Iterable[tuple[str, mx.array]]) -> None:
    """Write uncompressed arrays one at a time, so that only the current one is in memory."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays:
            array = mx.contiguous(array)
            is_bfloat16 = array.dtype == mx.bfloat16
            numbers = np.asarray(array.view(mx.uint16)).view("V2") if is_bfloat16 else np.asarray(array)
            # With a fixed date, the file depends only on the weights
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(member, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, numbers, version=(1, 0), allow_pickle=False)
