"""Safe access to untrusted files: regular files only, and JSON of bounded size and depth."""

from __future__ import annotations

import errno
import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

MAX_JSON_BYTES = 4 << 20  # the largest known weight index is about 100 KB
MAX_JSON_DEPTH = 32


def open_regular(path: Path, max_bytes: int | None = None) -> BufferedReader:
    """Open a regular file. Raises `CheckpointError` if this fails or the file is larger than `max_bytes`."""
    try:
        return open_if_regular(path, max_bytes)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def open_if_regular(path: Path, max_bytes: int | None = None) -> BufferedReader:
    """Open a regular file. Raises `OSError` for other files: pipes may block, and devices may be endless."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if max_bytes is not None and status.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
    # O_NONBLOCK: if a pipe has replaced the file since stat(), opening it must not block
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def open_text(path: Path) -> BufferedReader:
    """Open a regular file, or a pipe that the shell has opened (`<(command)`). Raises `OSError` for other files."""
    return path.open("rb") if path.parts[:3] == ("/", "dev", "fd") else open_if_regular(path)


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file containing one JSON object of bounded size and depth. Raises `CheckpointError` for any other file."""
    with open_regular(path, MAX_JSON_BYTES) as file:
        text = file.read(MAX_JSON_BYTES)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(content, dict) or not is_shallow(content):
        raise CheckpointError(f"{path}: not a JSON object with at most {MAX_JSON_DEPTH} levels")
    return content


def is_shallow(content: Any) -> bool:
    """Return whether JSON has at most `MAX_JSON_DEPTH` levels. Python may parse deeper JSON but fail to write it."""
    level = [content]
    for _ in range(MAX_JSON_DEPTH):
        containers = [value for value in level if isinstance(value, dict | list)]
        level = [child for value in containers for child in (value.values() if isinstance(value, dict) else value)]
    return not level
