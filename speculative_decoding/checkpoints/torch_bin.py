"""Reader for one torch `.bin` file, in torch's zip format or the legacy one that came before it. Needs no torch.

Zip: `<root>/data.pkl` is the state dict and `<root>/data/<key>` the storages, stored uncompressed. Legacy: five
pickles (magic number, protocol version, system, state dict, storage keys), then per key an int64 count and the raw
numbers. Either way a tensor is a strided view of a storage, read from a map of the file when it is asked for.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError
from .base import NUMPY_TYPES, Checkpoint, TensorInfo, array_from_bytes
from .mapped import Extent, map_file, release
from .pickles import MAX_BYTES, Pickle, StoredTensor, read_pickle
from .stored_zip import ZIP_START, verify, zip_entries

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_VERSION = 1001
LEGACY_START = b"\x80\x02\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little")
NESTING_KEYS = ("state_dict", "model")  # where training scripts put the state dict, beside their own state
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class TorchCheckpoint(Checkpoint):
    """The tensors of a state dict. float64 comes out as float32, as everywhere here (`array_from_bytes`)."""

    def __init__(self, path: Path, data: mmap.mmap, pickle: Pickle, extents: Mapping[str, Extent]) -> None:
        self.path = path
        self._data = data
        self._tensors = state_dict(path, pickle.value)
        self._extents = extents
        self._unverified = {key for key, extent in extents.items() if extent.crc is not None}
        for key, storage in pickle.storages.items():
            if key not in extents:
                raise CheckpointError(f"{path}: storage {key!r} is missing")
            if extents[key].nbytes != storage.nbytes:
                raise CheckpointError(f"{path}: storage {key!r} has {extents[key].nbytes} bytes, not {storage.nbytes}")

    def info(self, name: str) -> TensorInfo:
        tensor = self._tensors[name]
        return TensorInfo(tensor.shape, tensor.storage.dtype)

    def __getitem__(self, name: str) -> mx.array:
        tensor, info = self._tensors[name], self.info(name)
        extent = self._extents[tensor.storage.key]
        if tensor.storage.key in self._unverified:
            verify(self.path, self._data, tensor.storage.key, extent)
            self._unverified.remove(tensor.storage.key)
        size = info.dtype.size
        strides = tuple(stride * size for stride in tensor.strides)
        start = extent.start + tensor.offset * size
        bits = np.ascontiguousarray(np.ndarray(info.shape, BITS[size], self._data, start, strides))
        if info.dtype in NUMPY_TYPES or info.dtype in (mx.bfloat16, mx.float64):
            array = array_from_bytes(bits.reshape(-1).view(np.uint8), info)
        else:
            array = mx.array(bits.reshape(info.shape))
            array = array != 0 if info.dtype == mx.bool_ else array.view(info.dtype)
        release(self._data, extent)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __str__(self) -> str:
        return str(self.path)


def state_dict(path: Path, value: object) -> dict[str, StoredTensor]:
    """The name -> tensor dict in what was saved: that itself, or directly under one of `NESTING_KEYS`."""
    if isinstance(value, dict):
        nested = [value[key] for key in NESTING_KEYS if isinstance(value.get(key), dict)]
        value = nested[0] if len(nested) == 1 else value
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, not a state dict")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, StoredTensor):
            raise CheckpointError(
                f"{path}: not a state dict, entry {name!r} is a {type(tensor).__name__}; save model.state_dict() alone"
            )
    return value


def read_torch(path: Path) -> Checkpoint:
    """Open a `.bin` file of either format. Raises `CheckpointError` if it is damaged, or is neither."""
    data = map_file(path, "torch")
    if data[: len(ZIP_START)] == ZIP_START:
        return read_zip(path, data)
    if data[: len(LEGACY_START)] == LEGACY_START:
        return read_legacy(path, data)
    if data[257:262] == b"ustar":
        raise CheckpointError(
            f"{path}: torch's tar format (before 0.1.10) is not supported; save it with a newer torch"
        )
    raise CheckpointError(f"{path}: not a torch file, it starts with {data[:16]!r}")


def read_legacy(path: Path, data: mmap.mmap) -> Checkpoint:
    position, header = 0, []
    for _ in range(3):
        pickle = read_pickle(path, data, position, len(data))
        position = pickle.stop
        header.append(pickle.value)
    match header:
        case [int(magic), int(version), {"little_endian": True}] if (magic, version) == (LEGACY_MAGIC, LEGACY_VERSION):
            pass
        case _:
            raise CheckpointError(f"{path}: not a little-endian torch file of protocol {LEGACY_VERSION}")
    saved = read_pickle(path, data, position, len(data))
    keys = read_pickle(path, data, saved.stop, len(data))
    if not isinstance(keys.value, list):
        raise CheckpointError(f"{path}: no list of storages after the state dict")
    position, extents = keys.stop, dict[str, Extent]()
    for key in keys.value:
        if not isinstance(key, str) or key not in saved.storages or key in extents:
            raise CheckpointError(f"{path}: a storage is listed twice, or unknown to the state dict")
        storage = saved.storages[key]
        count = int.from_bytes(data[position : position + 8], "little")
        extents[key] = Extent(position + 8, storage.nbytes)
        position = extents[key].stop
        if count != storage.numel or position > len(data):
            raise CheckpointError(f"{path}: storage {key!r} is damaged or cut short")
    if position != len(data):
        raise CheckpointError(f"{path}: {len(data) - position} bytes too many at the end")
    return TorchCheckpoint(path, data, saved, extents)


def read_zip(path: Path, data: mmap.mmap) -> Checkpoint:
    entries = zip_entries(path, data)
    roots = [name.removesuffix("data.pkl") for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(roots) != 1 or not all(name.startswith(roots[0]) for name in entries):
        raise CheckpointError(f"{path}: a zip file, but not one folder with a data.pkl as torch writes it")
    root = roots[0]
    pickle, order = entries[f"{root}data.pkl"], entries.get(f"{root}byteorder")
    if pickle.nbytes > MAX_BYTES:
        raise CheckpointError(f"{path}: a data.pkl of {pickle.nbytes} bytes")
    verify(path, data, "data.pkl", pickle)
    if order and (order.nbytes != 6 or data[order.start : order.stop] != b"little"):
        raise CheckpointError(f"{path}: the numbers in it are not little-endian")
    saved = read_pickle(path, data, pickle.start, pickle.stop)
    extents = {key: entries[name] for key in saved.storages if (name := f"{root}data/{key}") in entries}
    return TorchCheckpoint(path, data, saved, extents)
