"""The setting that tune found best, kept in the target's folder for later runs on the same kind of machine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..decoding.request import SCHEDULES
from ..drafters import DRAFTERS
from ..errors import InputError
from ..loading.safe_folder import write_file

FILE = "tuned.json"


@dataclass(frozen=True)
class Tuned:
    """drafter, num_draft: as `--drafter` and `--num-draft` take them. Raises `ValueError` where they would not."""

    drafter: str
    num_draft: int | str

    def __post_init__(self) -> None:
        if self.drafter not in DRAFTERS:
            raise ValueError(f"drafter {self.drafter!r}")
        if self.num_draft not in SCHEDULES and (type(self.num_draft) is not int or self.num_draft < 0):
            raise ValueError(f"num_draft {self.num_draft!r}")


def key(
    draft: Path | None, dtype: str | None, *, bits: int | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a best setting depends on, besides the target.

    bits: of a draft that is the target itself. options: others that shape drafts.
    """
    return {
        "draft_model": None if draft is None else draft.resolve().name,
        "bits": bits,
        "dtype": dtype,
        "device": [str(mx.default_device()), str(mx.device_info().get("device_name"))],
        "options": {name: str(value) for name, value in sorted((options or {}).items())},
    }


def read_tuned(target: Path, key: Mapping[str, Any]) -> Tuned | None:
    """None where nothing was tuned for this key. Raises `InputError` for a damaged file."""
    path = target / FILE
    try:
        for entry in entries_of(path):
            if entry["key"] == key:
                return Tuned(entry["drafter"], entry["num_draft"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not what tune wrote ({error!r}); delete it, and tune again if you like") from error
    return None


def entries_of(path: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []


def require_writable(target: Path) -> None:
    """Raises `InputError` where `write_tuned` would, so that it is known before hours of measuring."""
    try:
        with tempfile.NamedTemporaryFile(prefix=f".{FILE}.", dir=target):
            pass
    except OSError as error:
        raise InputError(
            f"{target / FILE}: cannot be written ({error}); copy the model to a folder of yours, "
            "or give --dry-run to measure only"
        ) from error
    read_tuned(target, {})  # raises where it is damaged


def write_tuned(target: Path, key: Mapping[str, Any], best: Tuned, evidence: Mapping[str, Any]) -> Path:
    """Add it to the file, in the place of an older one for the same key. `evidence`: what was measured."""
    path = target / FILE
    read_tuned(target, key)  # raises where it is damaged, rather than to write over it
    entries = [entry for entry in entries_of(path) if entry["key"] != key]
    entries.append({"key": key, "drafter": best.drafter, "num_draft": best.num_draft, **evidence})
    try:
        write_file(path, json.dumps(entries, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error})") from error
    return path
