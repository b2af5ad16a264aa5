"""The current user's private folder for compiled kernels, calibrations and unpacked packages, on every platform.

Programs load code from this folder and trust its measurements, so it must not be writable by other users.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAY_OUT = "name another folder for caches in XDG_CACHE_HOME"


def cache_folder(name: str) -> Path:
    """Return a private folder, and create it if necessary.

    Raises:
        OSError: The folder cannot be created, or is not private.
        RuntimeError: The user's home folder cannot be determined.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # the XDG specification says to ignore a relative path
        cache = Path.home() / ".cache"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    package_folder = require_private(cache.resolve() / "speculative-decoding", 0o002)
    return require_private(package_folder / name, 0o077)


def require_private(path: Path, forbidden: int) -> Path:
    """Create a folder if necessary. Raises OSError if it has another owner or forbidden permission bits."""
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()  # does not follow links
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & forbidden:
        raise OSError(f"{path}: not a private folder of this user; remove it")
    return path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes and threads from entering this block for the same folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
