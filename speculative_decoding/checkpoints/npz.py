"""Reader and streaming writer for our own `.npz`: a zip of `.npy` arrays, stored uncompressed.

numpy cannot name bfloat16; MLX writes it as two-byte void (`|V2`) and reads that back as bfloat16, and so do we.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from tokenize import TokenError

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError
from .base import Checkpoint, TensorInfo, array_from_bytes
from .mapped import Extent, map_file, release
from .stored_zip import zip_entries

DESCRIPTIONS = {"<f4": mx.float32, "<f2": mx.float16, "|V2": mx.bfloat16, "<f8": mx.float64, "<u4": mx.uint32}
MAX_HEADER_BYTES = 4096


class NpzCheckpoint(Checkpoint):
    """Every array is a view of the mapped file until it is asked for.

    Checksums are for `manifest.verify`: at every start they would cost several times the loading itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = map_file(path, ".npz")
        self._entries = {
            name.removesuffix(".npy"): self._read_header(name, entry)
            for name, entry in zip_entries(path, self._data).items()
        }

    def _read_header(self, name: str, entry: Extent) -> tuple[Extent, TensorInfo]:
        """Where the numbers of an `.npy` entry lie, and what they are."""
        header = BytesIO(self._data[entry.start : min(entry.stop, entry.start + MAX_HEADER_BYTES)])
        try:
            if np.lib.format.read_magic(header) != (1, 0):
                raise ValueError("not an .npy file of version 1.0")
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(header)
        # numpy hands the header to Python's own parser, which raises what it likes
        except (ValueError, SyntaxError, TokenError, EOFError, TypeError, MemoryError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: entry {name!r} is damaged ({error})") from error
        if fortran_order or dtype.str not in DESCRIPTIONS or any(size < 0 for size in shape):
            raise CheckpointError(f"{self.path}: entry {name!r} holds {dtype.str!r} {shape}, which is not supported")
        info = TensorInfo(shape, DESCRIPTIONS[dtype.str])
        if entry.nbytes != header.tell() + info.nbytes:
            raise CheckpointError(
                f"{self.path}: entry {name!r} has {entry.nbytes} bytes, which is not its shape's size"
            )
        return Extent(entry.start + header.tell(), info.nbytes), info

    def info(self, name: str) -> TensorInfo:
        return self._entries[name][1]

    def __getitem__(self, name: str) -> mx.array:
        numbers, info = self._entries[name]
        array = array_from_bytes(np.frombuffer(self._data, np.uint8, numbers.nbytes, numbers.start), info)
        release(self._data, numbers)
        return array

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
