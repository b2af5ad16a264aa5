"""Checkpoints that are sharded across several files, as is common for large models."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from ..errors import CheckpointError
from .base import Checkpoint
from .files import read_json_object


class IndexedCheckpoint(Checkpoint):
    """A checkpoint in several files, with an index that maps each tensor to its file."""

    def __init__(self, index: Path, read_file: Callable[[Path], Checkpoint]) -> None:
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{index}: not an index of weight files (no 'weight_map')")

        files: dict[str, Checkpoint] = {}
        for file_name in dict.fromkeys(map(str, weight_map.values())):
            path = index.parent / Path(file_name).name
            if not os.path.isfile(path):
                raise CheckpointError(f"{index}: weight file {path.name!r} is missing")
            files[file_name] = read_file(path)

        self._file_of = {name: files[str(file_name)] for name, file_name in weight_map.items()}
        for name, file in self._file_of.items():
            if name not in file:
                raise CheckpointError(f"{file}: tensor {name!r} is missing, but {index.name} lists it")
        super().__init__(index, {name: file.info(name) for name, file in self._file_of.items()})

    def __getitem__(self, name: str) -> mx.array:
        return self._file_of[name][name]

    def read_slice(self, name: str, axis: int, start: int, stop: int) -> mx.array:
        return self._file_of[name].read_slice(name, axis, start, stop)

    def is_same(self, first: str, second: str) -> bool:
        file = self._file_of[first]
        return file.is_same(first, second) if file is self._file_of[second] else super().is_same(first, second)
