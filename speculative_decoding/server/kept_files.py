"""Keeps translated files in memory until clients have downloaded them, under names that nobody can guess."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote

from .errors import ServerError

RANDOM_BYTES = 24  # of a name
MAX_NAME = 100  # characters of a name for users
KEPT = 64  # all files together may have as many bytes as this many requests
GROWTH = 2  # how many bytes are reserved for each byte of a file that is being translated


class KeptFile(NamedTuple):
    """name: what users call the file. client: the address for which it is kept. timer: deletes it."""

    name: str
    content: bytes
    client: str
    timer: asyncio.TimerHandle


class KeptFiles:
    """Files by their random names. Nothing is written to a disk, so no name leads to another file.

    Room is reserved before a file is translated, so no finished translation is refused. A client may have as much as it
    leaves free (a dynamic threshold, as for the buffers of switches: Choudhury and Hahne, 1998), so one client alone
    has at most half, and a few clients cannot take all.

    Args:
        seconds: How long a file is kept.
        max_bytes: The size of all files together, and of the reserved room.
    """

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._files: dict[str, KeptFile] = {}
        self._used: Counter[str] = Counter()  # bytes by client: kept, and reserved

    @contextmanager
    def reserve(self, client: str, size: int) -> Iterator[None]:
        """Reserve room for the translation of so many bytes within the context. Raises `ServerError`."""
        size *= GROWTH
        if self._used[client] + size > self._max_bytes - self._used.total() - size:
            message = "too many translated files are kept; try again in some minutes"
            raise ServerError(429, message, code="files_full", headers={"Retry-After": str(round(self._seconds) or 1)})
        self._used[client] += size
        try:
            yield
        finally:
            self._release(client, size)

    def keep(self, client: str, name: str, suffix: str, content: bytes) -> str:
        """Keep a file, for which there is `reserve`, and return its random name.

        name: what users call it. suffix: the end of both names.
        """
        key = secrets.token_urlsafe(RANDOM_BYTES) + suffix
        timer = asyncio.get_running_loop().call_later(self._seconds, self._delete, key)
        self._files[key] = KeptFile(name[:MAX_NAME] + suffix, content, client, timer)
        self._used[client] += len(content)
        return key

    def _delete(self, key: str) -> None:
        file = self._files.pop(key)
        self._release(file.client, len(file.content))

    def _release(self, client: str, size: int) -> None:
        self._used[client] -= size
        if not self._used[client]:
            del self._used[client]

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
        self._used.clear()


def content_disposition(name: str) -> str:
    """Return a header that makes a program save a file under a name (RFC 6266), or under a similar one in ASCII."""
    name = "".join(each if each.isprintable() and each not in '/\\:*?"<>|' else "_" for each in name)
    plain = re.sub("[^A-Za-z0-9._-]", "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
