"""Files that somebody else made: only regular ones are opened, and JSON has bounds. Knows no format of weights."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CheckpointError

MAX_JSON_BYTES = 4 << 20  # the largest index of shards has some 100 KB
MAX_JSON_DEPTH = 32


def open_regular(path: Path) -> BinaryIO:
    """A pipe would wait for its writer, and a device may never end. Raises OSError."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("not a regular file")
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def require_regular(path: Path, most: int) -> None:
    """Before somebody else's code reads it: if there is such a file, it is a regular one of at most so many bytes."""
    if path.exists():
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise CheckpointError(f"{path}: not a regular file of at most {most} bytes")


def read_object(path: Path) -> dict[str, Any]:
    """A file with one JSON object, of bounded size and depth. Raises `CheckpointError`."""
    try:
        with open_regular(path) as file:
            text = file.read(MAX_JSON_BYTES + 1)
        if len(text) > MAX_JSON_BYTES:
            raise ValueError(f"more than {MAX_JSON_BYTES} bytes")
        content = json.loads(text.decode("utf-8"))
        require_shallow(content)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return content


def require_shallow(content: Any) -> None:
    """Raise ValueError for what Python could read, but could not write again."""
    level = [content]
    for _ in range(MAX_JSON_DEPTH):
        level = [child for each in level if isinstance(each, dict | list) for child in children(each)]
    if level:
        raise ValueError(f"nested more than {MAX_JSON_DEPTH} levels deep")


def children(value: dict[str, Any] | list[Any]) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else value
