"""Reader for one safetensors file. The `safetensors` package checks it; the data is read through a map of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np

from ..errors import CheckpointError
from .base import Checkpoint, TensorInfo, array_from_bytes
from .mapped import Extent, map_file, release

DTYPES = {"F64": mx.float64, "F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}


class SafetensorsCheckpoint(Checkpoint):
    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            with safe_open(path, framework="numpy"):
                pass  # opening checks the header: its size, every shape against its bytes, overlaps and holes
            with path.open("rb") as file:
                header_bytes = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(header_bytes))
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path}: not a readable safetensors file ({error})") from error
        self._header = {name: entry for name, entry in header.items() if name != "__metadata__"}
        self._start = 8 + header_bytes
        self._data = map_file(path, "safetensors")

    def info(self, name: str) -> TensorInfo:
        entry = self._header[name]
        if entry["dtype"] not in DTYPES:
            raise CheckpointError(f"{self.path}: tensor {name!r} has type {entry['dtype']}, which is not supported")
        return TensorInfo(tuple(entry["shape"]), DTYPES[entry["dtype"]])

    def __getitem__(self, name: str) -> mx.array:
        start, stop = self._header[name]["data_offsets"]
        extent = Extent(self._start + start, stop - start)
        array = array_from_bytes(np.frombuffer(self._data, np.uint8, extent.nbytes, extent.start), self.info(name))
        release(self._data, extent)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._header)

    def __len__(self) -> int:
        return len(self._header)

    def __str__(self) -> str:
        return str(self.path)


def read_safetensors(path: Path) -> Checkpoint:
    return SafetensorsCheckpoint(path)
