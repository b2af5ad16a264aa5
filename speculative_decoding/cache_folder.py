"""The folder of this user's for what is compiled or measured once and read again, on every platform.

What lies in it is loaded as code or believed without a question, so it must be nobody else's.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

NAME = "speculative-decoding"
WAY_OUT = "name another folder for caches in XDG_CACHE_HOME"


def cache_folder(name: str) -> Path:
    """The private folder of that name, made if need be. Raises OSError, or RuntimeError without a home folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the XDG specification says to ignore a relative path
        cache = Path.home() / ".cache"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    return own_folder(own_folder(cache.resolve() / NAME, 0o002) / name, 0o077)


def own_folder(path: Path, forbidden: int) -> Path:
    """The folder, made if need be. Raises OSError unless it is this user's, without these permissions for others."""
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()  # of itself: not of what a link points to
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & forbidden:
        raise OSError(f"{path} is not a folder that is yours alone; remove it")
    return path
