"""A folder, or a file, that appears whole or not at all, whatever happens while it is being written."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RENAME_SWAP = 2  # RENAME_SWAP of macOS and RENAME_EXCHANGE of Linux
AT_FDCWD = -100


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Write into the folder this yields; when the block ends without an error, it becomes `target`.

    An older `target` stays until then. Everything is on disk before it takes its name. After an error, also
    Ctrl-C, nothing is left; what a killed process left is removed by the next call.
    """
    parent, name = target.parent, target.name
    parent.mkdir(parents=True, exist_ok=True)
    clean_up(target)
    folder = Path(tempfile.mkdtemp(prefix=f".{name}.partial-", dir=parent))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as this process lives: the folder is no leftover
        yield folder
        folder.chmod(0o755)
        for path in folder.iterdir():
            sync(path)
        sync(folder)
        replace_folder(folder, target)
        sync(parent)
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def write_file(path: Path, text: str) -> None:
    """Write UTF-8 text. An older file of that name stays until the new one is on disk. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    partial = Path(name)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def replace_folder(folder: Path, target: Path) -> None:
    """Give `folder` the name `target`. An older folder of that name changes places with it, in one step."""
    if not target.exists():
        folder.rename(target)
    elif not exchange(folder, target):  # a file system that cannot: there is a moment without either
        aside = old_name(target)
        target.rename(aside)
        folder.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically: renamex_np on macOS, renameat2 on Linux. False where that is not supported."""
    system = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        return system.renamex_np(*names, RENAME_SWAP) == 0
    return hasattr(system, "renameat2") and system.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_SWAP) == 0


def clean_up(target: Path) -> None:
    """Finish what a killed process left: bring back an old folder that had stepped aside, remove partial ones."""
    aside = old_name(target)
    if aside.exists() and not target.exists():
        aside.rename(target)
    shutil.rmtree(aside, ignore_errors=True)
    prefix = f".{target.name}.partial-"  # behind it `mkdtemp` writes 8 characters
    for leftover in (each for each in target.parent.iterdir() if each.name[:-8] == prefix):
        with suppress(OSError):  # gone, or locked by the process that is still writing it
            lock = os.open(leftover, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(leftover, ignore_errors=True)
            finally:
                os.close(lock)


def old_name(target: Path) -> Path:
    return target.parent / f".{target.name}.partial-old"


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
