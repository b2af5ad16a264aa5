"""Reader for one safetensors file. The `safetensors` package checks it; the data is read through a map of the file.

The package's own arrays cannot be bfloat16, and its map of the file stays in memory. That tensors lie in one file, in C
order, it shares with `.npz`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from .base import Checkpoint, Shard, TensorInfo
from .files import ByteRange, MappedFile

DTYPES = {
    "F64": mx.float64, "F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16, "BOOL": mx.bool_,
    "I64": mx.int64, "I32": mx.int32, "I16": mx.int16, "I8": mx.int8,
    "U64": mx.uint64, "U32": mx.uint32, "U16": mx.uint16, "U8": mx.uint8,
}  # fmt: skip


class MappedCheckpoint(Checkpoint):
    """Tensors whose numbers lie in one file, in C order."""

    def __init__(self, file: MappedFile, tensors: Mapping[str, tuple[TensorInfo, ByteRange]]) -> None:
        super().__init__(file.path, {name: info for name, (info, _) in tensors.items()})
        self._file = file
        self._extents = {name: extent for name, (_, extent) in tensors.items()}

    def __getitem__(self, name: str) -> mx.array:
        return self._file.array(self.info(name), self._extents[name])

    def read_shard(self, name: str, shard: Shard) -> mx.array:
        info = self.info(name)
        steps = [math.prod(info.shape[axis + 1 :]) for axis in range(len(info.shape))]
        part, start = replace(info, shape=shard.shape(info.shape)), shard.of(info.shape)[0] * steps[shard.axis]
        return self._file.array(part, self._extents[name], start, tuple(steps))


def read_safetensors(path: Path) -> Checkpoint:
    from safetensors import SafetensorError, safe_open

    file = MappedFile(path, "safetensors")
    try:
        with safe_open(path, framework="numpy"):
            pass  # opening checks the header: its size, every shape against its bytes, overlaps and holes
        data_start = 8 + int.from_bytes(file.data[:8], "little")
        header = json.loads(file.data[8:data_start])
    except (SafetensorError, OSError, ValueError) as error:
        raise file.error(f"not a readable safetensors file ({error})") from error
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        dtype, shape, (start, stop) = DTYPES.get(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
        if dtype is None or not (info := TensorInfo(shape, dtype)).has_valid_shape:
            raise file.error(f"tensor {name!r} has type {entry['dtype']}, shape {shape}, which is not supported")
        tensors[name] = info, ByteRange(data_start + start, stop - start)
    return MappedCheckpoint(file, tensors)
