"""Reads from pseudo-terminals."""

from __future__ import annotations

import errno
import os


def read_terminal(master: int) -> bytes:
    """Read from a terminal, like `os.read`; nothing if its program has ended. Linux reports the end as an error."""
    try:
        return os.read(master, 4096)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""
