"""Creates files and folders atomically by renaming a temporary file or folder when it is complete."""

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
    """A file that an option names, or one next to it. part: identifies the latter, for example "'s settings"."""

    option: str
    path: str | Path
    part: str = ""


@contextmanager
def new_file(
    path: Path, option: str, way_out: str | Message, *, replaces: bool = True
) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that writes to a temporary file. It is renamed to `path` if the block raises no error.

    Creates the parent folder if needed, and removes temporary files left behind by killed processes.

    Args:
        path: The file.
        option: The option that names the file, for error messages.
        way_out: Advice for the user if the file cannot be written.
        replaces: Whether to replace an existing file with different content.

    Raises:
        InputError: The file cannot be written, or a file with different content exists. The temporary file is removed.
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
    """Raise `InputError` if the file or device `path` cannot be written. option: The option that names it."""
    if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
        raise InputError(f"{path} cannot be written", option, "name a file in a folder that exists")


def require_file(path: Path, option: str) -> None:
    """Raise `InputError` if `path` exists but is not a regular file. option: The option that names it."""
    if path.exists() and not path.is_file():
        raise InputError(
            f"{path} is not a regular file", option, Message("move it, or name another {option}", option=Name(option))
        )


def require_folder(path: Path, option: str) -> None:
    """Raise `InputError` if no files can be created in `path`, which need not exist. option: Its name in messages."""
    existing = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    if not existing.is_dir():
        raise InputError(
            f"{existing} is not a folder", option, Message("move it, or name another {option}", option=Name(option))
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"{existing} is not writable", option, Message("name another {option}", option=Name(option)))


def require_space(path: Path, nbytes: int, option: str | None, way_out: str | Message) -> None:
    """Raise `InputError` if the disk that will hold `path` has too little free space for `nbytes` and small files."""
    needed = nbytes + (1 << 26)  # plus 64 MB for tokenizer files and zip headers
    existing = next(folder for folder in path.resolve().parents if folder.exists())
    if (free := shutil.disk_usage(existing).free) < needed:
        sizes = f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        raise InputError(f"{path}: not enough disk space ({sizes})", option, way_out)


def folded(name: str) -> str:
    """Return a string that is equal for all names that a file system may treat as the same file."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def content_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def not_replaced(path: Path, why: str, option: str) -> InputError:
    """Return the error for an existing file that is replaced only with --force. why: The reason, such as "exists"."""
    way_out = Message("move it, name another {option}, or replace it with {force}", option=Name(option))
    return InputError(f"{path} {why}", option, way_out)


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the block ends without an error.

    An existing `target` is kept until the new folder has been synced to disk. The temporary folder is removed after an
    error or Ctrl-C, or by the next call if the process is killed.
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
    """Write UTF-8 text. An existing file is kept until the new one is on disk. Raises OSError.

    A killed process may leave behind a temporary file, which `clean_up` removes.
    """
    with atomic_file(path, mode) as file:
        file.write(text.encode())


@contextmanager
def atomic_file(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a new file that becomes `path` when the block ends without an error. Raises OSError.

    An existing file is kept until the new one is on disk. A killed process may leave behind a temporary file, which
    `clean_up` removes. Temporary files that are still being written are locked, so `clean_up` keeps them.

    mode: The file's permissions (default: as determined by the umask).
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
        with suppress(OSError):  # if the disk is full, `close` fails again
            file.close()


def open_locked(path: Path, busy: InputError) -> FileIO:
    """Open a file for unbuffered reading and writing, creating it if needed, and lock it until it is closed.

    Raises OSError, or `busy` if another process holds the lock.
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
        file.close()  # another process removed the file between `open` and `flock`


def write_all(file: FileIO, content: bytes) -> None:
    """Write all of `content`. A single call to an unbuffered file's `write` may write only part of it."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def umask() -> int:
    """Return this process's umask. No other thread may create files during the call."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def replace_folder(folder: Path, target: Path, swap: Callable[[Path, Path], bool] | None = None) -> None:
    """Rename `folder` to `target`. If `target` exists, swap the two atomically. swap: Replaces `exchange` in tests."""
    if not target.exists():
        folder.rename(target)
    elif not (swap or exchange)(folder, target):  # without an atomic swap, `target` is missing for a moment
        aside = old_name(target)
        target.rename(aside)
        folder.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically, with renamex_np on macOS and renameat2 on Linux. Returns False if unsupported."""
    system = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    swap = 2  # RENAME_SWAP on macOS, RENAME_EXCHANGE on Linux
    if sys.platform == "darwin":
        return system.renamex_np(first, second, swap) == 0
    here = -100  # AT_FDCWD: paths are relative to the working directory
    return hasattr(system, "renameat2") and system.renameat2(here, first, here, second, swap) == 0


def clean_up(target: Path) -> None:
    """Clean up after a killed process: restore the old `target`, and remove unlocked temporary files and folders."""
    aside = old_name(target)
    if aside.exists() and not target.exists():
        aside.rename(target)
    shutil.rmtree(aside, ignore_errors=True)

    prefix = f".{target.name}.partial-"
    leftovers = [path for path in target.parent.iterdir() if path.name[:-8] == prefix]  # mkdtemp adds 8 characters
    for leftover in leftovers:
        with suppress(OSError):  # the file was removed, or a running process has locked it
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
    """Return the name of the old `target` while it is replaced without an atomic swap."""
    return target.parent / f".{target.name}.partial-old"


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
