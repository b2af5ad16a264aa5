"""Places for files and folders, which appear whole or not at all: a temporary one is renamed when it is complete."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..errors import InputError, Message, Name, writing


class NamedFile(NamedTuple):
    """A file that an option names. part: set for a file beside it, such as "'s settings"."""

    option: str
    path: str | Path
    part: str = ""


@contextmanager
def new_file(
    path: Path, option: str, way_out: str | Message, *, replaces: bool = True
) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that writes to a new file, which becomes `path` when the block ends without an error.

    Its folder is created if needed, and what a killed process has left is removed.

    Args:
        path: The file.
        option: The option that names it, for messages.
        way_out: What to do if it cannot be written.
        replaces: Whether an existing file with another content is replaced.

    Raises:
        InputError: It cannot be written, or would replace another content. No part of it is left.
    """
    digest = hashlib.sha256()
    with ExitStack() as stack:
        with writing(Name(option), path, way_out):
            path.parent.mkdir(parents=True, exist_ok=True)
            clean_up(path)
            file = stack.enter_context(atomic_file(path))

        def write(content: bytes) -> None:
            digest.update(content)
            with writing(Name(option), path, way_out):
                file.write(content)

        yield write
        if not replaces and path.exists() and content_hash(path) != digest.hexdigest():
            raise not_replaced(path, "already exists with another content", option)
        with writing(Name(option), path, way_out):
            stack.close()


def require_writable(path: Path | None, option: str) -> None:
    """Raise `InputError` if a file cannot be written there. It may be a device. option: what names the place."""
    if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
        raise InputError(f"{path} cannot be written", option, "name a file in a folder that exists")


def require_file(path: Path, option: str) -> None:
    """Raise `InputError` if something that is not a file is at the place of one. option: what names the place."""
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path} is not a regular file", option, Message("move it, or name another {option}", option=Name(option))
        )


def require_folder(path: Path, option: str) -> None:
    """Raise `InputError` if files cannot be created in a folder, which need not exist. option: what names it."""
    existing = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    if not existing.is_dir():
        raise InputError(
            f"{existing} is not a folder", option, Message("move it, or name another {option}", option=Name(option))
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{existing} is not writable", option, Message("name another {option}", option=Name(option)))


def folded(name: str) -> str:
    """Return a text that is equal for names of the same file on any file system."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def content_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def not_replaced(path: Path, why: str, option: str) -> InputError:
    """Return the error about a file that is in the way, and that only --force replaces. why: such as "exists"."""
    way_out = Message("move it, name another {option}, or replace it with {force}", option=Name(option))
    return InputError(f"{path} {why}", option, way_out)


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the block ends without an error.

    An existing `target` stays until the new folder has been synced to disk. An error or Ctrl-C removes the temporary
    folder; the next call removes the leftovers of a killed process.
    """
    parent = target.parent
    parent.mkdir(parents=True, exist_ok=True)
    clean_up(target)

    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=parent))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held until this process exits; `clean_up` skips locked folders
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


def atomic_write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write UTF-8 text. An existing file stays until the new one is on disk. Raises OSError.

    A killed process may leave a temporary file, which `clean_up` removes.
    """
    with atomic_file(path, mode) as file:
        file.write(text.encode())


@contextmanager
def atomic_file(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a new file that becomes `path` when the block ends without an error. Raises OSError.

    An existing file stays until the new one is on disk. A killed process may leave a temporary file, which `clean_up`
    removes unless it is still being written.

    mode: The permissions; None means those of any new file.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.partial-", dir=path.parent)
    partial = Path(name)
    file = open(descriptor, "wb")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
        file.flush()
        os.fsync(file.fileno())
        partial.chmod(0o666 & ~umask() if mode is None else mode)
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)
        with suppress(OSError):  # on a full disk, closing it fails again
            file.close()


def open_locked(path: Path, busy: InputError) -> FileIO:
    """Open a file to read and write it without a buffer, and lock it until it is closed. Creates it if needed.

    Raises `OSError`, or `busy` if another process has locked it.
    """
    while True:
        file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise (busy if isinstance(error, BlockingIOError) else error) from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # another process has removed it before it was locked


def write_all(file: FileIO, content: bytes) -> None:
    """Write all of the content, although each call of a file without a buffer may write only a part."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def umask() -> int:
    """Return the permissions that new files of this process lack. Other threads must not create files meanwhile."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def replace_folder(folder: Path, target: Path, swap: Callable[[Path, Path], bool] | None = None) -> None:
    """Rename `folder` to `target`, swapping the two atomically if `target` exists. swap: replaces `exchange`."""
    if not target.exists():
        folder.rename(target)
    elif not (swap or exchange)(folder, target):  # no atomic swap: for a moment, `target` does not exist
        aside = old_name(target)
        target.rename(aside)
        folder.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically: renamex_np on macOS, renameat2 on Linux. Returns False if not supported."""
    system = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    swap = 2  # RENAME_SWAP on macOS, RENAME_EXCHANGE on Linux
    if sys.platform == "darwin":
        return system.renamex_np(first, second, swap) == 0
    here = -100  # AT_FDCWD: relative paths start at the working directory
    return hasattr(system, "renameat2") and system.renameat2(here, first, here, second, swap) == 0


def clean_up(target: Path) -> None:
    """Clean up after a killed process: restore an old folder, and remove unlocked temporary folders and files."""
    aside = old_name(target)
    if aside.exists() and not target.exists():
        aside.rename(target)
    shutil.rmtree(aside, ignore_errors=True)

    prefix = f".{target.name}.partial-"
    leftovers = [path for path in target.parent.iterdir() if path.name[:-8] == prefix]  # mkdtemp adds 8 characters
    for leftover in leftovers:
        with suppress(OSError):  # already removed, or locked by a running process
            lock = os.open(leftover, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
                else:
                    leftover.unlink()
            finally:
                os.close(lock)


def old_name(target: Path) -> Path:
    """Return the temporary name of `target` while a new folder replaces it without an atomic swap."""
    return target.parent / f".{target.name}.partial-old"


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
