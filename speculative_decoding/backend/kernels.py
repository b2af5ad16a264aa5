"""Where MLX keeps the kernels that it compiles on a CPU.

MLX fuses operations into kernels, which `g++` compiles when they are first used, and loads whatever already lies in
`$TMPDIR/mlx`. On Linux all users share that folder: what lies there may be somebody else's code. So MLX gets a folder
of this user's, or compiles nothing. macOS has a temporary folder for each user, and Metal needs no `g++`.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path

import mlx.core as mx

from ..cache_folder import WAY_OUT, cache_folder
from ..errors import InputError
from .blas import problems, warn_if_slow

UNFUSED = "MLX computes without fused kernels, which is slower"
VERSION: str = mx.__version__  # type: ignore[attr-defined]

_folder: Path | None = None  # what MLX takes for the folder of temporary files


def use_private_folder() -> None:
    """Call before MLX evaluates anything. Runs no compiler and never fails."""
    global _folder
    if not sys.platform.startswith("linux"):
        return
    try:
        folder = cache_folder("kernels")
        remove_unsafe(folder)
    except (OSError, RuntimeError) as error:  # the latter where there is no home folder
        problems.append(f"{UNFUSED}: {error}, or {WAY_OUT}")
        mx.disable_compile()
        return
    _folder = folder
    # In C's environment alone: `os.environ` and `tempfile` keep what the user set. MLX has no other setting, and reads
    # this for each kernel, so it cannot be set back; a program started without an environment of its own inherits it.
    os.putenv("TMPDIR", str(folder))


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
            mx.eval(mx.compile(lambda x: mx.exp(x) + 1)(mx.ones(3)))
        except RuntimeError as error:
            problems.append(f"{UNFUSED}: {explained(error)}")
            mx.disable_compile()
    warn_if_slow()


def explained(error: RuntimeError) -> RuntimeError | InputError:
    """One line for a kernel that MLX could not compile; any other error as it is."""
    if "[Compile::" not in str(error) and "C++ shared library" not in str(error):
        return error
    return InputError(
        f"no kernel can be compiled in {_folder} ({str(error).splitlines()[-1]}); make room there, or {WAY_OUT}"
    )
