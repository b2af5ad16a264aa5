"""What the JSON files of a folder say about its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..checkpoints.files import read_json_object


def settings_of(path: Path) -> dict[str, Any]:
    """Read a JSON file; empty if there is none."""
    return read_json_object(path) if path.is_file() else {}


def tokenizer_class(folder: Path) -> str | None:
    """Return the class that a folder names for its tokenizer, without "Fast"."""
    for file in ("tokenizer_config.json", "config.json"):
        name = settings_of(folder / file).get("tokenizer_class")
        if isinstance(name, str):
            return name.removesuffix("Fast")
    return None


def model_type_of(folder: Path) -> str | None:
    model_type = settings_of(folder / "config.json").get("model_type")
    return model_type if isinstance(model_type, str) else None


def family_config(folder: Path) -> dict[str, str]:
    """Return the fields of config.json by which transformers chooses the class of a tokenizer."""
    fields = {"model_type": model_type_of(folder), "tokenizer_class": tokenizer_class(folder)}
    return {key: value for key, value in fields.items() if value is not None}
