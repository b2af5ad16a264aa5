"""Reader and streaming writer for our own `.npz`: a zip of `.npy` arrays, stored uncompressed.

numpy cannot name bfloat16; MLX writes it as two-byte void (`|V2`) and reads that back as bfloat16, and so do we.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from tokenize import TokenError

import mlx.core as mx
import numpy as np

from .base import Checkpoint, TensorInfo
from .mapped import Extent, MappedCheckpoint, MappedFile
from .stored_zip import verify, zip_entries

DTYPES = {"<f4": mx.float32, "<f2": mx.float16, "|V2": mx.bfloat16, "<f8": mx.float64, "<u4": mx.uint32}
MAX_HEADER_BYTES = 4096


def read_npz(path: Path) -> Checkpoint:
    """Open a `.npz`. Checksums are left to `verify_npz`: at every start they would take longer than the loading."""
    file = MappedFile(path, ".npz")
    arrays: dict[str, tuple[TensorInfo, Extent]] = {}
    for entry, extent in zip_entries(file).items():
        if (name := entry.removesuffix(".npy")) in arrays:
            raise file.error(f"array {name!r} appears twice")
        arrays[name] = read_header(file, entry, extent)
    return MappedCheckpoint(file, arrays)


def read_header(file: MappedFile, name: str, entry: Extent) -> tuple[TensorInfo, Extent]:
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
    if known is None or fortran_order or not (info := TensorInfo(shape, known)).has_sound_shape:
        raise file.error(f"entry {name!r} holds {dtype.str!r} {shape}, which is not supported")
    if entry.nbytes != header.tell() + info.nbytes:
        raise file.error(f"entry {name!r} has {entry.nbytes} bytes, which is not its shape's size")
    return info, Extent(entry.start + header.tell(), info.nbytes)


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


def verify_npz(path: Path) -> None:
    """Raise `CheckpointError` unless every array's bytes have the CRC-32 that was taken when they were written."""
    file = MappedFile(path, ".npz")
    for name, entry in zip_entries(file).items():
        verify(file, name, entry)
