"""Checkpoints on disk: `read(folder)` finds the weights in any supported format and returns a lazy mapping.

Each reader handles one format and uses Hugging Face's tensor names. A reader is imported only when a folder is in its
format. This package does not depend on `models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .base import Checkpoint, TensorInfo
from .files import read_json_object

# Maps file names to readers, in order of preference. To add a format, add a module with a reader and a line here.
FORMATS = {
    "weights.npz": "npz.read_npz",
    "model.safetensors": "safetensors.read_safetensors",
    "weights.safetensors": "safetensors.read_safetensors",  # used by mlx-whisper
    "pytorch_model.bin": "torch_bin.read_torch",
}
CTRANSLATE2 = "model.bin"
CTRANSLATE2_PATHS = (CTRANSLATE2, f"model/{CTRANSLATE2}")  # in a model folder, and in an Argos Translate package
ADAPTER_FORMATS = {
    "adapter_model.safetensors": "safetensors.read_safetensors",
    "adapter_model.bin": "torch_bin.read_torch",
}
ADAPTER_CONFIG = "adapter_config.json"
ID_FIELDS = ("decoder_start_token_id", "pad_token_id", "eos_token_id")


def reader(name: str) -> Callable[[Path], Checkpoint]:
    """Return the function that opens the file `name`, which is a key of `FORMATS` or `ADAPTER_FORMATS`."""
    module, _, function = (FORMATS | ADAPTER_FORMATS)[name].partition(".")
    read_file: Callable[[Path], Checkpoint] = getattr(import_module(f".{module}", __name__), function)
    return read_file


def read(folder: Path, gguf: Path | None = None) -> Checkpoint:
    """Open the weights in a folder, or the given GGUF file. Raises `CheckpointError` if they are missing or damaged."""
    for name in FORMATS if gguf is None else ():
        if (path := folder / name).is_file():
            return reader(name)(path)
        if (index := folder / f"{name}.index.json").is_file():
            from .indexed import IndexedCheckpoint

            return IndexedCheckpoint(index, reader(name))
    if gguf is None and (model := find_ctranslate2(folder)) is not None:
        from .ctranslate2_layout import read_ctranslate2

        return read_ctranslate2(model)
    if (gguf := gguf or find_gguf(folder)) is None:
        raise CheckpointError(
            f"{folder}: no weights found (expected one of {', '.join(FORMATS)}, {CTRANSLATE2}, *.gguf)"
        )
    from .gguf import read_gguf

    return read_gguf(gguf)


def read_config(folder: Path, gguf: Path | None = None) -> dict[str, Any]:
    """Return the parsed config.json, or derive its fields from a CTranslate2 model or the metadata of a GGUF file."""
    if gguf is None and (model := find_ctranslate2(folder)) is not None:
        from .ctranslate2_config import ctranslate2_config

        return ctranslate2_config(model)
    path = folder / "config.json"
    if path.exists():
        return read_json_object(path)
    if (gguf := gguf or find_gguf(folder)) is None:
        raise CheckpointError(f"{folder}: no config.json found; name the folder of a model")
    from .gguf import gguf_config

    return gguf_config(gguf)


def read_generation_config(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the parsed generation_config.json and the name of the file that was used.

    Older models keep these fields in config.json, so `config` is used if the file is missing, as in transformers.
    """
    path = folder / "generation_config.json"
    if path.exists():
        return read_json_object(path), path.name
    fields = dict(config)
    if config.get("force_bos_token_to_be_generated") is True:  # set by the first BART checkpoints
        fields["forced_bos_token_id"] = config.get("bos_token_id")
    return fields, "config.json"


def find_ctranslate2(folder: Path) -> Path | None:
    """Return the CTranslate2 model of a folder or an Argos Translate package; None if there are other weights."""
    if any((folder / f"{name}{ending}").is_file() for name in FORMATS for ending in ("", ".index.json")):
        return None
    path = next(filter(Path.is_file, (folder / name for name in CTRANSLATE2_PATHS)), None)
    return None if path is None or any(folder.glob("*.gguf")) else path


def find_gguf(folder: Path) -> Path | None:
    """Return the folder's GGUF file, whatever its name, or None. Raises `CheckpointError` if there are several."""
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise CheckpointError(f"{folder}: holds {len(files)} .gguf files; keep only one")
    return files[0] if files else None


__all__ = ["Checkpoint", "CheckpointError", "TensorInfo", "read", "read_config", "read_generation_config"]
