"""Reader for one torch `.bin` file, in torch's zip format or the legacy one that came before it. Needs no torch.

Zip: `<root>/data.pkl` is the state dict and `<root>/data/<key>` the storages, stored uncompressed. Legacy: five
pickles (magic number, protocol version, system, state dict, storage keys), then per key an int64 count and the raw
numbers. Either way a tensor is a strided view of a storage, read from a map of the file when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx

from .base import Checkpoint, TensorInfo
from .files import ByteRange, MappedFile
from .npz import ZIP_START, verify, zip_entries
from .pickles import MAX_BYTES, PickleInterpreter, StoredTensor, read_pickle

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_VERSION = 1001
LEGACY_START = b"\x80\x02\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little")
NESTING_KEYS = ("state_dict", "model")  # where training scripts put the state dict, beside their own state


class TorchCheckpoint(Checkpoint):
    """The tensors of a state dict: views of storages, whose CRC-32, where there is one, is compared at first use."""

    def __init__(self, file: MappedFile, saved: PickleInterpreter, extents: Mapping[str, ByteRange]) -> None:
        self._file, self._extents = file, extents
        self._tensors = state_dict(file, saved.value)
        self._unverified = {key for key, extent in extents.items() if extent.crc is not None}
        infos = {name: TensorInfo(tensor.shape, tensor.storage.dtype) for name, tensor in self._tensors.items()}
        super().__init__(file.path, infos)
        for key, storage in saved.storages.items():
            if key not in extents:
                raise file.error(f"storage {key!r} is missing")
            if extents[key].nbytes != storage.nbytes:
                raise file.error(f"storage {key!r} has {extents[key].nbytes} bytes, not {storage.nbytes}")

    def __getitem__(self, name: str) -> mx.array:
        tensor = self._tensors[name]
        key = tensor.storage.key
        if key in self._unverified:
            verify(self._file, key, self._extents[key])
            self._unverified.remove(key)
        return self._file.array(self.info(name), self._extents[key], tensor.offset, tensor.strides)


def state_dict(file: MappedFile, value: object) -> dict[str, StoredTensor]:
    """The name -> tensor dict in what was saved: that itself, or directly under one of `NESTING_KEYS`."""
    if isinstance(value, dict):
        nested = [value[key] for key in NESTING_KEYS if isinstance(value.get(key), dict)]
        value = nested[0] if len(nested) == 1 else value
    if not isinstance(value, dict):
        raise file.error(f"holds a {type(value).__name__}, not a state dict")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, StoredTensor):
            raise file.error(
                f"not a state dict, entry {name!r} is a {type(tensor).__name__}; save model.state_dict() alone"
            )
    return value


def read_torch(path: Path) -> Checkpoint:
    """Open a `.bin` file of either format. Raises `CheckpointError` if it is damaged, or is neither."""
    file = MappedFile(path, "torch")
    start = file.data[:262]
    if start.startswith(ZIP_START):
        return read_zip(file)
    if start.startswith(LEGACY_START):
        return read_legacy(file)
    if start[257:] == b"ustar":
        raise file.error("torch's tar format (before 0.1.10) is not supported; save it with a newer torch")
    raise file.error(f"not a torch file, it starts with {start[:16]!r}")


def read_legacy(file: MappedFile) -> Checkpoint:
    position, header = 0, []
    for _ in range(3):
        pickle = read_pickle(file, position)
        position = pickle.position
        header.append(pickle.value)
    system = header.pop()
    if header != [LEGACY_MAGIC, LEGACY_VERSION] or not isinstance(system, dict) or not system.get("little_endian"):
        raise file.error(f"not a little-endian torch file of protocol {LEGACY_VERSION}")
    saved = read_pickle(file, position)
    keys = read_pickle(file, saved.position)
    if not isinstance(keys.value, list):
        raise file.error("no list of storages after the state dict")
    position, extents = keys.position, dict[str, ByteRange]()
    for key in keys.value:
        if not isinstance(key, str) or key not in saved.storages or key in extents:
            raise file.error("a storage is listed twice, or unknown to the state dict")
        storage = saved.storages[key]
        count = int.from_bytes(file.data[position : position + 8], "little")
        extents[key] = ByteRange(position + 8, storage.nbytes)
        position = extents[key].stop
        if count != storage.numel or position > len(file.data):
            raise file.error(f"storage {key!r} is damaged or cut short")
    if position != len(file.data):
        raise file.error(f"{len(file.data) - position} bytes too many at the end")
    return TorchCheckpoint(file, saved, extents)


def read_zip(file: MappedFile) -> Checkpoint:
    entries = zip_entries(file)
    roots = [name.removesuffix("data.pkl") for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(roots) != 1 or not all(name.startswith(roots[0]) for name in entries):
        raise file.error("a zip file, but not one folder with a data.pkl as torch writes it")
    root = roots[0]
    pickle, order = entries[f"{root}data.pkl"], entries.get(f"{root}byteorder")
    if pickle.nbytes > MAX_BYTES:
        raise file.error(f"a data.pkl of {pickle.nbytes} bytes")
    verify(file, "data.pkl", pickle)
    if order and (order.nbytes != 6 or file.data[order.start : order.stop] != b"little"):
        raise file.error("the numbers in it are not little-endian")
    saved = read_pickle(file, pickle.start, pickle.nbytes)
    extents = {key: entries[name] for key in saved.storages if (name := f"{root}data/{key}") in entries}
    return TorchCheckpoint(file, saved, extents)
