"""Where MLX keeps the kernels that it compiles on a CPU, and a clock that stands still while it compiles them.

MLX fuses operations into kernels, which `g++` compiles when they are first used, and loads whatever already lies in
`$TMPDIR/mlx`. On Linux all users share that folder: what lies there may be somebody else's code. So MLX gets a folder
of this user's, or compiles nothing. macOS has a temporary folder for each user, and Metal needs no `g++`.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import mlx.core as mx

from ..errors import InputError
from .blas import problems, warn_if_slow

UNFUSED = "MLX computes without fused kernels, which is slower"
WAY_OUT = "name another folder for caches in XDG_CACHE_HOME"
VERSION: str = mx.__version__  # type: ignore[attr-defined]
Found = TypeVar("Found")

_folder: Path | None = None  # what MLX takes for the folder of temporary files
_is_said = False  # that kernels are compiled
_lost = 0.0  # seconds, with a compiler in them


def use_private_folder() -> None:
    """Call before MLX evaluates anything. Runs no compiler and never fails."""
    global _folder
    if not sys.platform.startswith("linux"):
        return
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if not cache.is_absolute():  # such a one is to be ignored, says the standard that the variable is from
            cache = Path.home() / ".cache"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = own_folder(own_folder(cache.resolve() / "speculative-decoding", 0o002) / "kernels", 0o077)
        remove_unsafe(folder)
    except (OSError, RuntimeError) as error:  # the latter where there is no home folder
        problems.append(f"{UNFUSED}: {error}, or {WAY_OUT}")
        mx.disable_compile()
        return
    _folder = folder
    # In C's environment alone: `os.environ` and `tempfile` keep what the user set. MLX has no other setting, and reads
    # this for each kernel, so it cannot be set back; a program started without an environment of its own inherits it.
    os.putenv("TMPDIR", str(folder))


def own_folder(path: Path, forbidden: int) -> Path:
    """A folder of this user's, without these permissions for others: what lies in it is loaded as code."""
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()  # of itself: not of what a link points to
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & forbidden:
        raise OSError(f"{path} is not a folder that is yours alone; remove it")
    return path


def remove_unsafe(folder: Path) -> None:
    """Kernels that are somebody else's, links, or cut short as by a power failure: MLX then compiles them anew."""
    for path in folder.glob("mlx/*/cpu/lib*.so"):
        with suppress(FileNotFoundError):  # another process may be doing the same
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or not is_whole(path):
                path.unlink()


def is_whole(library: Path) -> bool:
    """Whether a library (ELF, 64 bits) is as long as its header says: the table of its sections is its end."""
    with library.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or not header.startswith(b"\x7fELF"):
        return False
    (start,), (size, count) = struct.unpack_from("<Q", header, 40), struct.unpack_from("<HH", header, 58)
    return bool(start + size * count <= library.stat().st_size)


def check() -> None:
    """Before a model is used: can kernels be compiled, and loaded? Otherwise none are. Says once what is slow."""
    if _folder is not None and mx.default_device() == mx.cpu:
        try:
            without_compiler(lambda: mx.eval(mx.compile(lambda x: mx.exp(x) + 1)(mx.ones(3))))
        except InputError as error:
            problems.append(f"{UNFUSED}: {error}")
            mx.disable_compile()
    warn_if_slow()


def clock() -> float:
    """Seconds, as `time.perf_counter` counts them, but for those in which there was a compiler."""
    return time.perf_counter() - _lost


def without_compiler(compute: Callable[[], Found], undo: Callable[[], None] = lambda: None) -> Found:
    """compute(), for the time that it takes: where MLX compiled kernels for it, that time is lost, and it is undone and
    computed again. Raises `InputError` where kernels cannot be compiled.
    """
    global _lost, _is_said
    before, started = newest_kernel(), time.perf_counter()
    try:
        found = compute()
    except RuntimeError as error:
        if "[Compile::" not in str(error) and "C++ shared library" not in str(error):
            raise
        raise InputError(
            f"no kernel can be compiled in {_folder} ({str(error).splitlines()[-1]}); make room there, or {WAY_OUT}"
        ) from error
    if newest_kernel() == before:
        return found
    if not _is_said:
        _is_said = True
        warnings.warn(f"MLX compiles kernels for this kind of model: some seconds, once ({_folder})", stacklevel=2)
    undo()
    _lost += time.perf_counter() - started
    return compute()


def newest_kernel() -> int:
    """When MLX last compiled one; 0: never."""
    try:
        return 0 if _folder is None else os.stat(f"{_folder}/mlx/{VERSION}/cpu").st_mtime_ns  # a Path takes 5 us more
    except FileNotFoundError:
        return 0
