"""Checkpoints on disk: `read(folder)` finds the weights, whatever their format, and gives them lazily by name.

One reader per format, all returning Hugging Face tensor names. Knows nothing of models.
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

# In order of preference. A format is one line here and one reader beside this file.
FORMATS: dict[str, Callable[[Path], Checkpoint]] = {
    "weights.npz": read_npz,
    "model.safetensors": read_safetensors,
    "pytorch_model.bin": read_torch,
}


FORCED_BOS = "force_bos_token_to_be_generated"  # in the first files of BART
ID_FIELDS = ("decoder_start_token_id", "pad_token_id", "eos_token_id")


class IndexedCheckpoint(Checkpoint):
    """Several files and the index that says which tensor is in which."""

    def __init__(self, index: Path, read_shard: Callable[[Path], Checkpoint]) -> None:
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{index}: not an index of shards, which has a 'weight_map'")
        shards: dict[str, Checkpoint] = {}
        for shard in dict.fromkeys(map(str, weight_map.values())):
            path = index.parent / Path(shard).name
            if not os.path.isfile(path):
                raise CheckpointError(f"{index}: shard {path.name!r} is missing")
            shards[shard] = read_shard(path)
        self._shard_of = {name: shards[str(shard)] for name, shard in weight_map.items()}
        for name, checkpoint in self._shard_of.items():
            if name not in checkpoint:
                raise CheckpointError(f"{checkpoint}: tensor {name!r} is missing, though {index.name} names it")
        super().__init__(index, {name: checkpoint.info(name) for name, checkpoint in self._shard_of.items()})

    def __getitem__(self, name: str) -> mx.array:
        return self._shard_of[name][name]

    def read_shard(self, name: str, shard: Shard) -> mx.array:
        return self._shard_of[name].read_shard(name, shard)


def read(folder: Path, gguf: Path | None = None) -> Checkpoint:
    """The weights in a folder, or in the GGUF file. Raises `CheckpointError` if there are none, or damaged ones."""
    if gguf is not None:
        return read_gguf(gguf)
    for file_name, read_file in FORMATS.items():
        if (path := folder / file_name).is_file():
            return read_file(path)
        if (index := folder / f"{file_name}.index.json").is_file():
            return IndexedCheckpoint(index, read_file)
    if (only := gguf_file(folder)) is not None:
        return read_gguf(only)
    raise CheckpointError(f"{folder}: no weights found; looked for {', '.join(FORMATS)}, *.gguf")


def read_config(folder: Path, gguf: Path | None = None) -> dict[str, Any]:
    """The parsed config.json; for a GGUF file without one, the same facts from its metadata."""
    path = folder / "config.json"
    if path.exists():
        return read_json_object(path)
    if (only := gguf or gguf_file(folder)) is not None:
        return gguf_config(only)
    raise CheckpointError(f"{folder}: no config.json in it; is this a model's folder?")


def read_generation_config(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The parsed generation_config.json, or without one config.json, where older models have its fields; as
    transformers takes them. And which of the files it is.
    """
    path = folder / "generation_config.json"
    if path.exists():
        return read_json_object(path), path.name
    forced = {"forced_bos_token_id": config.get("bos_token_id")} if config.get(FORCED_BOS) is True else {}
    return {**config, **forced}, "config.json"


def gguf_file(folder: Path) -> Path | None:
    """The folder's GGUF file, which may have any name."""
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise CheckpointError(f"{folder}: holds {len(files)} .gguf files; leave one of them")
    return files[0] if files else None


__all__ = ["Checkpoint", "CheckpointError", "TensorInfo", "read", "read_config", "read_generation_config"]
