"""Checkpoints on disk: `read(folder)` finds the weights, whatever their format, and gives them lazily by name.

One reader per format, all returning Hugging Face tensor names. Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import CheckpointError
from .base import Checkpoint, TensorInfo
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


class ShardedCheckpoint(Checkpoint):
    """Several files and the index that says which tensor is in which."""

    def __init__(self, index: Path, read_shard: Callable[[Path], Checkpoint]) -> None:
        self.path = index
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            shards = {str(shard): index.parent / Path(shard).name for shard in weight_map.values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index}: not a readable index of shards ({error!r})") from error
        for path in shards.values():
            if not path.is_file():
                raise CheckpointError(f"{index}: shard {path.name!r} is missing")
        opened = {shard: read_shard(path) for shard, path in shards.items()}
        self._shard_of = {name: opened[str(shard)] for name, shard in weight_map.items()}
        for name, shard in self._shard_of.items():
            if name not in shard:
                raise CheckpointError(f"{shard}: tensor {name!r} is missing, though {index.name} names it")

    def info(self, name: str) -> TensorInfo:
        return self._shard_of[name].info(name)

    def __getitem__(self, name: str) -> mx.array:
        return self._shard_of[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shard_of)

    def __len__(self) -> int:
        return len(self._shard_of)

    def __str__(self) -> str:
        return str(self.path)


def read(folder: Path, gguf: Path | None = None) -> Checkpoint:
    """The weights in a folder, or in the GGUF file. Raises `CheckpointError` if there are none, or damaged ones."""
    if gguf is not None:
        return read_gguf(gguf)
    for file_name, read_file in FORMATS.items():
        if (path := folder / file_name).is_file():
            return read_file(path)
        if (index := folder / f"{file_name}.index.json").is_file():
            return ShardedCheckpoint(index, read_file)
    if (only := gguf_file(folder)) is not None:
        return read_gguf(only)
    raise CheckpointError(f"{folder}: no weights found; looked for {', '.join(FORMATS)}, *.gguf")


def read_config(folder: Path, gguf: Path | None = None) -> dict[str, Any]:
    """The parsed config.json; for a GGUF file without one, the same facts from its metadata."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if (only := gguf or gguf_file(folder)) is not None:
            return gguf_config(only)
        raise CheckpointError(f"{folder}: no config.json in it; is this a model's folder?") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return config


def gguf_file(folder: Path) -> Path | None:
    """The folder's GGUF file, which may have any name."""
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise CheckpointError(f"{folder}: holds {len(files)} .gguf files; leave one of them")
    return files[0] if files else None


__all__ = ["Checkpoint", "CheckpointError", "TensorInfo", "read", "read_config"]
