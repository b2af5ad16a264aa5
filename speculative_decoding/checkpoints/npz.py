"""Zip files whose entries are stored uncompressed, so that they can be mapped: our own `.npz`, read and written, and
torch's `.bin`.

Python's zipfile reads the directory, but accepts what a checkpoint should be refused for: entries that overlap, appear
twice or lead elsewhere, and a directory as large as it claims to be. numpy cannot name bfloat16; MLX writes it as
two-byte void (`|V2`) and reads that back as bfloat16, and so do we.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterable
from io import BytesIO, FileIO
from pathlib import Path
from tokenize import TokenError

import mlx.core as mx
import numpy as np

from .base import Checkpoint, TensorInfo
from .files import ByteRange, MappedFile
from .safetensors import MappedCheckpoint

ZIP_START = b"PK\x03\x04"
ZIP_ENCRYPTED, ZIP_UTF8 = 0x1, 0x800
ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of name and extra field; the rest is skipped
MAX_ZIP_DIRECTORY_BYTES = 4 << 20  # 40,000 entries; T5-11B has some 500
CHUNK_BYTES = 8 << 20
DTYPES = {"<f4": mx.float32, "<f2": mx.float16, "|V2": mx.bfloat16, "<f8": mx.float64, "<u4": mx.uint32}
MAX_HEADER_BYTES = 4096


class BoundedFile(FileIO):
    """Reads no more at once than the largest directory; zipfile refuses a larger one as cut short."""

    def read(self, size: int | None = -1, /) -> bytes:
        bounded = MAX_ZIP_DIRECTORY_BYTES if size is None or size < 0 else min(size, MAX_ZIP_DIRECTORY_BYTES)
        return super().read(bounded) or b""


def zip_entries(file: MappedFile) -> dict[str, ByteRange]:
    """Each entry's name and where its data lies. Whatever `unzip` might read differently is refused."""
    try:
        with BoundedFile(file.path) as bounded, zipfile.ZipFile(bounded) as archive:
            entries, directory_start, comment = archive.infolist(), archive.start_dir, archive.comment
    except (zipfile.BadZipFile, NotImplementedError, OSError, OverflowError, ValueError, struct.error) as error:
        raise file.error(f"the zip directory is damaged or cut short ({error})") from error
    if comment:
        raise file.error("a zip file with a comment")
    extents, stop = dict[str, ByteRange](), 0
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
        extents[name] = ByteRange(start + name_size + extra_size, entry.file_size, entry.CRC)
        stop = extents[name].stop
    if stop > directory_start:
        raise file.error("the last zip entry reaches into the directory")
    return extents


def verify(file: MappedFile, name: str, extent: ByteRange) -> None:
    """Compare the CRC-32, a chunk at a time so that memory stays bounded."""
    crc = 0
    for start in range(extent.start, extent.stop, CHUNK_BYTES):
        chunk = ByteRange(start, min(CHUNK_BYTES, extent.stop - start))
        crc = zlib.crc32(memoryview(file.data)[chunk.start : chunk.stop], crc)
        file.release(chunk)
    if crc != extent.crc:
        raise file.error(f"{name!r} is damaged, CRC-32 {crc:08x} instead of {extent.crc:08x}")


def read_npz(path: Path) -> Checkpoint:
    """Open a `.npz`. Checksums are left to the manifest: at every start they would take longer than the loading."""
    file = MappedFile(path, ".npz")
    arrays: dict[str, tuple[TensorInfo, ByteRange]] = {}
    for entry, extent in zip_entries(file).items():
        if (name := entry.removesuffix(".npy")) in arrays:
            raise file.error(f"array {name!r} appears twice")
        arrays[name] = read_header(file, entry, extent)
    return MappedCheckpoint(file, arrays)


def read_header(file: MappedFile, name: str, entry: ByteRange) -> tuple[TensorInfo, ByteRange]:
    """What the numbers of an `.npy` entry are, and where they lie."""
    header = BytesIO(file.data[entry.start : min(entry.stop, entry.start + MAX_HEADER_BYTES)])
    try:
        if np.lib.format.read_magic(header) != (1, 0):
            raise ValueError("not an .npy file of version 1.0")
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(header)
    # numpy hands the header to Python's own parser, which raises what it likes
    except (ValueError, SyntaxError, TokenError, EOFError, TypeError, MemoryError, RecursionError) as error:
        raise file.error(f"entry {name!r} is damaged ({error})") from error
    known = DTYPES.get(dtype.str)
    if known is None or fortran_order or not (info := TensorInfo(shape, known)).has_valid_shape:
        raise file.error(f"entry {name!r} holds {dtype.str!r} {shape}, which is not supported")
    if entry.nbytes != header.tell() + info.nbytes:
        raise file.error(f"entry {name!r} has {entry.nbytes} bytes, which is not its shape's size")
    return info, ByteRange(entry.start + header.tell(), info.nbytes)


def write_npz(path: Path, arrays: Iterable[tuple[str, mx.array]]) -> None:
    """Write one array after another; only the current one is in memory. zip64, stored, so that it can be mapped."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays:
            array = mx.contiguous(array)
            is_bfloat16 = array.dtype == mx.bfloat16
            numbers = np.asarray(array.view(mx.uint16)).view("V2") if is_bfloat16 else np.asarray(array)
            # A fixed date: the same weights give the same bytes.
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, numbers, version=(1, 0), allow_pickle=False)
