"""Checkpoints on disk: `read(folder)` finds the weights in any supported format and returns a lazy mapping.

Each reader handles one format and returns Hugging Face tensor names. This package knows nothing of models.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import CheckpointError
from .base import Checkpoint, Shard, TensorInfo
from .files import read_json_object
from .gguf import gguf_config, read_gguf
from .npz import read_npz
from .safetensors import read_safetensors
from .torch_bin import read_torch

# In order of preference. To add a format, add a reader and a line here.
FORMATS: dict[str, Callable[[Path], Checkpoint]] = {
    "weights.npz": read_npz,
    "model.safetensors": read_safetensors,
    "weights.safetensors": read_safetensors,  # mlx-whisper's
    "pytorch_model.bin": read_torch,
}

ID_FIELDS = ("decoder_start_token_id", "pad_token_id", "eos_token_id")


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

    def read_shard(self, name: str, shard: Shard) -> mx.array:
        return self._file_of[name].read_shard(name, shard)

    def is_same(self, first: str, second: str) -> bool:
        file = self._file_of[first]
        return file.is_same(first, second) if file is self._file_of[second] else super().is_same(first, second)


def read(folder: Path, gguf: Path | None = None) -> Checkpoint:
    """Open the weights in a folder, or the given GGUF file. Raises `CheckpointError` if they are missing or damaged."""
    if gguf is not None:
        return read_gguf(gguf)
    for file_name, read_file in FORMATS.items():
        path = folder / file_name
        if path.is_file():
            return read_file(path)
        index = folder / f"{file_name}.index.json"
        if index.is_file():
            return IndexedCheckpoint(index, read_file)
    gguf = find_gguf(folder)
    if gguf is not None:
        return read_gguf(gguf)
    raise CheckpointError(f"{folder}: no weights found (expected one of {', '.join(FORMATS)}, *.gguf)")


def read_config(folder: Path, gguf: Path | None = None) -> dict[str, Any]:
    """Return the parsed config.json. Without that file, derive its fields from the metadata of a GGUF file."""
    path = folder / "config.json"
    if path.exists():
        return read_json_object(path)
    gguf = gguf or find_gguf(folder)
    if gguf is not None:
        return gguf_config(gguf)
    raise CheckpointError(f"{folder}: no config.json found; name the folder of a model")


def read_generation_config(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the parsed generation_config.json and the name of the file that was used.

    Older models keep these fields in config.json, so `config` is used if the file is missing, as in transformers.
    """
    path = folder / "generation_config.json"
    if path.exists():
        return read_json_object(path), path.name
    fields = dict(config)
    if config.get("force_bos_token_to_be_generated") is True:  # in the first BART checkpoints
        fields["forced_bos_token_id"] = config.get("bos_token_id")
    return fields, "config.json"


def find_gguf(folder: Path) -> Path | None:
    """Return the folder's only GGUF file, which may have any name."""
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise CheckpointError(f"{folder}: holds {len(files)} .gguf files; keep only one")
    return files[0] if files else None


__all__ = ["Checkpoint", "CheckpointError", "TensorInfo", "read", "read_config", "read_generation_config"]
