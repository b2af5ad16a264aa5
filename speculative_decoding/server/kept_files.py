"""Keeps translated files in memory for a limited time, under unguessable names."""

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

RANDOM_BYTES = 24  # number of random bytes in a name
MAX_NAME = 100  # maximum number of characters in the name for users
KEPT = 64  # maximum size of all files together, as a multiple of the maximum size of a request
GROWTH = 2  # bytes reserved for each byte of a file that is being translated


class KeptFile(NamedTuple):
    """A translated file. name: The name for users. client: The address of the client. timer: Deletes the file."""

    name: str
    content: bytes
    client: str
    timer: asyncio.TimerHandle


class KeptFiles:
    """Maps random names to files. Files are never written to disk, so no name can refer to a different file.

    Memory is reserved before a file is translated, so no finished translation is refused. A client may use as much
    memory as is free after its own use (dynamic thresholds, Choudhury and Hahne, 1998). A single client can therefore
    use at most half of the memory, and a few clients cannot use all of it.

    Args:
        seconds: How long a file is kept.
        max_bytes: The maximum size of all files and reservations.
    """

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._files: dict[str, KeptFile] = {}
        self._used: Counter[str] = Counter()  # client -> bytes that are kept or reserved

    @contextmanager
    def reserve(self, client: str, size: int) -> Iterator[None]:
        """Reserve memory for a translation within the context. size: Of the source file. Raises `ServerError`."""
        size *= GROWTH
        if self._used[client] + size > self._max_bytes - self._used.total() - size:
            message = "too many translated files are kept; try again in a few minutes"
            raise ServerError(429, message, code="files_full", headers={"Retry-After": str(round(self._seconds) or 1)})
        self._used[client] += size
        try:
            yield
        finally:
            self._release(client, size)

    def keep(self, client: str, name: str, suffix: str, content: bytes) -> str:
        """Keep a file, for which memory is reserved, and return its random name.

        name: The name for users, without the suffix. suffix: The end of both names.
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
        """Return a file. Raises `ServerError` for an unknown name."""
        if key not in self._files:
            raise ServerError(404, "no such file; translated files are deleted after a few minutes", code="no_file")
        return self._files[key]

    def clear(self) -> None:
        """Delete all files."""
        for each in self._files.values():
            each.timer.cancel()
        self._files.clear()
        self._used.clear()


def content_disposition(name: str) -> str:
    """Return a Content-Disposition header (RFC 6266) with a file name, and a similar ASCII name for old programs."""
    name = "".join(each if each.isprintable() and each not in '/\\:*?"<>|' else "_" for each in name)
    plain = re.sub("[^A-Za-z0-9._-]", "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
