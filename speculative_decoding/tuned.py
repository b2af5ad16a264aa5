"""The setting that tune found best, kept in the target's folder for later runs on the same kind of machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from .errors import InputError
from .safe_folder import write_file

FILE = "tuned.json"


@dataclass(frozen=True)
class Tuned:
    """drafter, num_draft: as `--drafter` and `--num-draft` take them."""

    drafter: str
    num_draft: int | str


def key(draft: Path | None, dtype: str | None) -> dict[str, Any]:
    """What a best setting depends on, besides the target."""
    return {
        "draft_model": None if draft is None else draft.resolve().name,
        "dtype": dtype,
        "device": [str(mx.default_device()), str(mx.device_info().get("device_name"))],
    }


def read_tuned(target: Path, draft: Path | None, dtype: str | None) -> Tuned | None:
    """None where nothing was tuned for this draft, type and device. Raises `InputError` for a damaged file."""
    try:
        text = (target / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        for entry in json.loads(text):
            if entry["key"] == key(draft, dtype):
                return Tuned(str(entry["drafter"]), entry["num_draft"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{target / FILE}: not what tune wrote ({error!r}); delete it, or tune again") from error
    return None


def write_tuned(target: Path, draft: Path | None, dtype: str | None, best: Tuned, evidence: Mapping[str, Any]) -> Path:
    """Add it to the file, in the place of an older one for the same key. `evidence`: what was measured."""
    path = target / FILE
    entries = []
    if path.exists():
        read_tuned(target, draft, dtype)  # raises where it is damaged, rather than to write over it
        entries = [entry for entry in json.loads(path.read_text(encoding="utf-8")) if entry["key"] != key(draft, dtype)]
    entries.append({"key": key(draft, dtype), "drafter": best.drafter, "num_draft": best.num_draft, **evidence})
    write_file(path, json.dumps(entries, indent=2) + "\n")
    return path
