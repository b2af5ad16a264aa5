"""Reader for one safetensors file. The `safetensors` package checks the header; the data is memory-mapped.

The package's numpy arrays do not support bfloat16, and its memory map keeps the whole file resident. Like `.npz`, the
format stores each tensor contiguously in C order.
"""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx

from .base import Checkpoint, TensorInfo
from .mapped import MappedCheckpoint, MappedFile

DTYPES = {
    "F64": mx.float64, "F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16, "BOOL": mx.bool_,
    "I64": mx.int64, "I32": mx.int32, "I16": mx.int16, "I8": mx.int8,
    "U64": mx.uint64, "U32": mx.uint32, "U16": mx.uint16, "U8": mx.uint8,
}  # fmt: skip


def read_safetensors(path: Path) -> Checkpoint:
    """Open a safetensors file. Raises `CheckpointError` if it is damaged."""
    from safetensors import SafetensorError, safe_open

    file = MappedFile(path, "safetensors")
    try:
        with safe_open(path, framework="numpy"):
            pass  # opening the file validates the header: its size, the byte count of each shape, overlaps and gaps
        data_start = 8 + int.from_bytes(file.data[:8], "little")
        header = json.loads(file.data[8:data_start])
    except (SafetensorError, OSError, ValueError) as error:
        raise file.error(f"not a readable safetensors file ({error})") from error
    header.pop("__metadata__", None)

    tensors = {}
    for name, entry in header.items():
        if (dtype := DTYPES.get(entry["dtype"])) is None:
            raise file.error(f"tensor {name!r}: unsupported dtype {entry['dtype']}")
        start, stop = entry["data_offsets"]
        tensors[name] = TensorInfo(tuple(entry["shape"]), dtype), range(data_start + start, data_start + stop)
    return MappedCheckpoint(file, tensors)
