"""Reader for one torch `.bin` file, in torch's zip format or its older legacy format. Does not need torch.

A zip file holds the state dict in `<root>/data.pkl` and the uncompressed storages in `<root>/data/<key>`. A legacy file
starts with five pickles: magic number, protocol version, system, state dict, and storage keys. For each storage, an
int64 count and the raw numbers follow. In both formats, a tensor is a strided view of a storage. The file is
memory-mapped, and each tensor is read when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx

from .base import Checkpoint, TensorInfo
from .mapped import MappedFile
from .npz import ZIP_START, check_crc, zip_entries
from .pickles import MAX_BYTES, PickleInterpreter, StoredTensor, read_pickle

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_VERSION = 1001


class TorchCheckpoint(Checkpoint):
    """The tensors of a state dict. A storage's CRC-32 is checked on first use.

    Args:
        locations: Maps storage keys to the locations of their bytes.
        crcs: Maps storage keys to CRC-32s, which only the zip format contains.
    """

    def __init__(
        self, file: MappedFile, pickle: PickleInterpreter, locations: Mapping[str, range], crcs: Mapping[str, int]
    ) -> None:
        self._file = file
        self._locations = locations
        self._tensors = find_state_dict(file, pickle.value)
        self._unchecked = dict(crcs)

        infos = {name: TensorInfo(tensor.shape, tensor.storage.dtype) for name, tensor in self._tensors.items()}
        super().__init__(file.path, infos)
        for key, storage in pickle.storages.items():
            if key not in locations:
                raise file.error(f"storage {key!r} is missing")
            if (nbytes := len(locations[key])) != storage.nbytes:
                raise file.error(f"storage {key!r} has {nbytes} bytes, expected {storage.nbytes}")

    def __getitem__(self, name: str) -> mx.array:
        tensor = self._tensors[name]
        key = tensor.storage.key
        if key in self._unchecked:
            check_crc(self._file, key, self._locations[key], self._unchecked[key])
            del self._unchecked[key]
        return self._file.array(self.info(name), self._locations[key], tensor.offset, tensor.strides)

    def is_same(self, first: str, second: str) -> bool:
        """Return whether two tensors are equal. Tied tensors are the same view of a storage and are not read."""
        ours, theirs = self._tensors[first], self._tensors[second]
        is_same_view = ours.storage.key == theirs.storage.key and ours.offset == theirs.offset
        is_same_view = is_same_view and (ours.shape, ours.strides) == (theirs.shape, theirs.strides)
        return is_same_view or super().is_same(first, second)


def find_state_dict(file: MappedFile, value: object) -> dict[str, StoredTensor]:
    """Return the state dict in a pickled value: the value itself, or the item under which training scripts store it."""
    if isinstance(value, dict):
        nested = [value[key] for key in ("state_dict", "model") if isinstance(value.get(key), dict)]
        value = nested[0] if len(nested) == 1 else value
    if not isinstance(value, dict):
        raise file.error(f"holds a {type(value).__name__}, not a state dict")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, StoredTensor):
            raise file.error(
                f"not a state dict (entry {name!r} is a {type(tensor).__name__}); save only model.state_dict()"
            )
    return value


def read_torch(path: Path) -> Checkpoint:
    """Open a `.bin` file in either format. Raises `CheckpointError` if it is damaged or in another format."""
    file = MappedFile(path, "torch")
    start = file.data[:262]
    if start.startswith(ZIP_START):
        return read_zip(file)
    if start.startswith(b"\x80\x02\x8a\x0a" + LEGACY_MAGIC.to_bytes(10, "little")):  # the pickled magic number
        return read_legacy(file)
    if start[257:] == b"ustar":
        raise file.error("torch's tar format (before 0.1.10) is not supported; save it with a newer torch")
    raise file.error(f"not a torch file (it starts with {start[:16]!r})")


def read_legacy(file: MappedFile) -> Checkpoint:
    magic = read_pickle(file, 0)
    version = read_pickle(file, magic.position)
    system = read_pickle(file, version.position)
    is_supported = isinstance(system.value, dict) and bool(system.value.get("little_endian"))
    if (magic.value, version.value) != (LEGACY_MAGIC, LEGACY_VERSION) or not is_supported:
        raise file.error(f"not a little-endian torch file of protocol {LEGACY_VERSION}")

    state_dict = read_pickle(file, system.position)
    keys = read_pickle(file, state_dict.position)
    if not isinstance(keys.value, list):
        raise file.error("no list of storages after the state dict")

    position = keys.position
    locations: dict[str, range] = {}
    for key in keys.value:
        if not isinstance(key, str) or key not in state_dict.storages or key in locations:
            raise file.error("a storage is listed twice or not used by the state dict")
        storage = state_dict.storages[key]
        count = int.from_bytes(file.data[position : position + 8], "little")
        start = position + 8
        position = start + storage.nbytes
        locations[key] = range(start, position)
        if count != storage.numel or position > len(file.data):
            raise file.error(f"storage {key!r} is damaged or truncated")
    if position != len(file.data):
        raise file.error(f"{len(file.data) - position} extra bytes at the end")
    return TorchCheckpoint(file, state_dict, locations, crcs={})


def read_zip(file: MappedFile) -> Checkpoint:
    entries = zip_entries(file)
    roots = [name.removesuffix("data.pkl") for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(roots) != 1 or not all(name.startswith(roots[0]) for name in entries):
        raise file.error("a zip file, but not written by torch (expected one folder with a data.pkl)")
    root = roots[0]

    pickle, crc = entries[f"{root}data.pkl"]
    if len(pickle) > MAX_BYTES:
        raise file.error(f"data.pkl is too large ({len(pickle)} bytes, at most {MAX_BYTES})")
    check_crc(file, "data.pkl", pickle, crc)
    byte_order, _ = entries.get(f"{root}byteorder", (None, None))
    if byte_order is not None and (len(byte_order) != 6 or file.data[byte_order.start : byte_order.stop] != b"little"):
        raise file.error("its numbers are not little-endian")

    state_dict = read_pickle(file, pickle.start, len(pickle))
    found = {key: entries[name] for key in state_dict.storages if (name := f"{root}data/{key}") in entries}
    locations = {key: location for key, (location, _) in found.items()}
    return TorchCheckpoint(file, state_dict, locations, {key: crc for key, (_, crc) in found.items()})
