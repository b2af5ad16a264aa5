"""Reader and streaming writer for our own `.npz`: a zip of `.npy` arrays, stored uncompressed.

numpy cannot name bfloat16; MLX writes it as two-byte void (`|V2`) and reads that back as bfloat16, and so do we.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError
from .base import Checkpoint, TensorInfo, array_from_bytes

DESCRIPTIONS = {"<f4": mx.float32, "<f2": mx.float16, "|V2": mx.bfloat16, "<f8": mx.float64, "<u4": mx.uint32}
LOCAL_HEADER = struct.Struct("<4s5H3L2H")
MAX_HEADER_BYTES = 4096


class NpzCheckpoint(Checkpoint):
    """Every array is a view of the mapped file until it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, tuple[int, TensorInfo]] = {}
        try:
            with zipfile.ZipFile(path) as archive, path.open("rb") as file:
                self._size = path.stat().st_size
                for member in archive.infolist():
                    name = member.filename.removesuffix(".npy")
                    if name in self._entries:
                        raise ValueError(f"{member.filename!r} stands in it twice")
                    self._entries[name] = self._read_entry(file, member)
        except (zipfile.BadZipFile, OSError, ValueError, KeyError, NotImplementedError, struct.error) as error:
            raise CheckpointError(f"{path}: not a readable .npz file ({error})") from error
        self._data = np.memmap(path, np.uint8, mode="r")

    def _read_entry(self, file: BinaryIO, member: zipfile.ZipInfo) -> tuple[int, TensorInfo]:
        """Where the member's data starts in the file, and what it is."""
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise ValueError(f"{member.filename!r} is compressed or encrypted")
        file.seek(member.header_offset)
        magic, *_, name_bytes, extra_bytes = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        if magic != b"PK\x03\x04":
            raise ValueError(f"{member.filename!r} has no local header")
        start = member.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
        file.seek(start)
        header = BytesIO(file.read(min(member.file_size, MAX_HEADER_BYTES)))
        version = np.lib.format.read_magic(header)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read_header(header)
        if fortran_order or dtype.str not in DESCRIPTIONS:
            raise ValueError(f"{member.filename!r} holds {dtype.str!r}, fortran_order={fortran_order}")
        info = TensorInfo(shape, DESCRIPTIONS[dtype.str])
        if member.file_size != header.tell() + info.nbytes or start + member.file_size > self._size:
            raise ValueError(f"{member.filename!r} is cut short")
        return start + header.tell(), info

    def info(self, name: str) -> TensorInfo:
        return self._entries[name][1]

    def __getitem__(self, name: str) -> mx.array:
        start, info = self._entries[name]
        return array_from_bytes(self._data[start : start + info.nbytes], info)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __str__(self) -> str:
        return str(self.path)


def read_npz(path: Path) -> Checkpoint:
    return NpzCheckpoint(path)


def write_npz(path: Path, arrays: Iterable[tuple[str, mx.array]]) -> None:
    """Write one array after another; only the current one is in memory. zip64, stored, so that it can be mapped."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays:
            mx.eval(array)
            header = BytesIO()
            np.lib.format.write_array_header_1_0(
                header, {"descr": description(array.dtype), "fortran_order": False, "shape": array.shape}
            )
            # A fixed date: the same weights give the same bytes.
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(member, "w", force_zip64=True) as file:
                file.write(header.getvalue())
                file.write(raw_bytes(array))


def description(dtype: mx.Dtype) -> str:
    return next(text for text, known in DESCRIPTIONS.items() if known == dtype)


def raw_bytes(array: mx.array) -> memoryview:
    """The array's bytes in C order, without a copy where MLX allows it."""
    array = mx.contiguous(array)
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.asarray(bits).data.cast("B")
