"""Keeps translated files in memory until clients have downloaded them, under names that nobody can guess."""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import NamedTuple
from urllib.parse import quote

from .errors import ServerError

RANDOM_BYTES = 24  # of a name
MAX_NAME = 100  # characters of a name for users
KEPT = 16  # all files together may have as many bytes as this many requests


class KeptFile(NamedTuple):
    """name: what users call the file. timer: deletes it."""

    name: str
    content: bytes
    timer: asyncio.TimerHandle


class KeptFiles:
    """Files by their random names. Nothing is written to a disk, so no name leads to another file.

    Args:
        seconds: How long a file is kept.
        max_bytes: The size of all files together.
    """

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._files: dict[str, KeptFile] = {}

    def require_room(self, size: int) -> None:
        """Raise `ServerError` if there is no room for so many bytes."""
        if sum(len(each.content) for each in self._files.values()) + size > self._max_bytes:
            message = "too many translated files are kept; try again in some minutes"
            raise ServerError(429, message, code="files_full", headers={"Retry-After": str(round(self._seconds) or 1)})

    def keep(self, name: str, suffix: str, content: bytes) -> str:
        """Keep a file, and return its random name. Raises `ServerError`.

        name: what users call it. suffix: the end of both names.
        """
        self.require_room(len(content))
        key = secrets.token_urlsafe(RANDOM_BYTES) + suffix
        timer = asyncio.get_running_loop().call_later(self._seconds, self._files.pop, key, None)
        self._files[key] = KeptFile(name[:MAX_NAME] + suffix, content, timer)
        return key

    def get(self, key: str) -> KeptFile:
        """Return a file. Raises `ServerError`."""
        if key not in self._files:
            raise ServerError(404, "no such file; translated files are deleted after some minutes", code="no_file")
        return self._files[key]

    def clear(self) -> None:
        """Delete all files."""
        for each in self._files.values():
            each.timer.cancel()
        self._files.clear()


def content_disposition(name: str) -> str:
    """Return a header that makes a program save a file under a name (RFC 6266), or under a similar one in ASCII."""
    name = "".join(each if each.isprintable() and each not in '/\\:*?"<>|' else "_" for each in name)
    plain = re.sub("[^A-Za-z0-9._-]", "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
