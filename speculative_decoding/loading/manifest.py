"""The manifest.json of a converted folder. It lists the files, so that damage is detected. Independent of models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoints.files import read_json_object
from ..errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
WAY_OUT = "copy or convert the model again"


def write(folder: Path, **facts: Any) -> None:
    """Write a manifest: the size and SHA-256 of every file, and other facts, such as the source and the dtype."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    content = {"format_version": FORMAT_VERSION, **facts, "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> Mapping[str, Any]:
    """Return the manifest, with each file's size and SHA-256. If the folder contains no manifest, `files` is empty.

    Raises `CheckpointError` if the manifest is damaged.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {"files": {}}
    try:
        content = read_json_object(path)
        version, files = content["format_version"], content["files"]
        if not all(isinstance(entry["bytes"], int) and isinstance(entry["sha256"], str) for entry in files.values()):
            raise TypeError("files")
    except (CheckpointError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a readable manifest ({error}); {WAY_OUT}") from error
    if version != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: unsupported format_version (got {version!r}, expected {FORMAT_VERSION}); convert the model again"
        )
    return content


def check_sizes(folder: Path) -> Mapping[str, Any]:
    """Return the manifest, like `read`. Raises `CheckpointError` if a file is missing or its size differs.

    Reads no file contents, so it is fast enough for every load.
    """
    content = read(folder)
    for name, entry in content["files"].items():
        path = folder / Path(name).name
        if not path.is_file():
            raise CheckpointError(f"{path}: file is missing; {WAY_OUT}")
        if (size := path.stat().st_size) != entry["bytes"]:
            raise CheckpointError(f"{path}: wrong size (got {size} bytes, expected {entry['bytes']}); {WAY_OUT}")
    return content


def verify(folder: Path) -> int:
    """Check the SHA-256 of every file and return the number of files.

    Raises `CheckpointError` naming the first damaged file.
    """
    files = check_sizes(folder)["files"]
    if not files:
        raise CheckpointError(f"{folder}: no {MANIFEST}; only folders written by convert.py can be verified")
    for name, entry in files.items():
        path = folder / Path(name).name
        if sha256(path) != entry["sha256"]:
            raise CheckpointError(f"{path}: checksum mismatch; {WAY_OUT}")
    return len(files)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
