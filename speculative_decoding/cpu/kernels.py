"""Provides MLX with a private folder for the CPU kernels that it compiles.

MLX fuses operations into kernels. `g++` compiles each kernel on first use, and MLX loads any library that is already in
`$TMPDIR/mlx`. All users of a Linux machine share that folder, so such a library could contain another user's code. This
module redirects MLX to a folder that only the current user can write, or disables fused kernels.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL

import mlx.core as mx

from ..cache_folder import WAY_OUT, cache_folder
from ..errors import InputError
from .blas import problems

UNFUSED = "MLX runs without fused kernels, which is slower"
COMPILER_SECONDS = 60
# MLX calls std::filesystem::temp_directory_path, which uses the first of these variables that is set.
TEMPORARY_FOLDERS = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")

_folder: Path | None = None  # the folder that MLX uses for compiled kernels


def use_private_folder() -> None:
    """Redirect MLX's compiled kernels. Call before MLX evaluates anything. Runs no compiler, never fails."""
    global _folder
    try:
        folder = cache_folder("kernels")
        remove_unsafe_kernels(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user's home folder is unknown
        problems.append(f"{UNFUSED}: {error}, or {WAY_OUT}")
        mx.disable_compile()
        return
    _folder = folder
    # MLX reads the C environment for each kernel, so this must stay set. `putenv` leaves `os.environ` and `tempfile`
    # unchanged, but subprocesses started without an explicit environment inherit the value. Usually none of the
    # variables is set. In that case, the last one is set, because hardly any other program reads it.
    os.putenv(next((name for name in TEMPORARY_FOLDERS if name in os.environ), TEMPORARY_FOLDERS[-1]), str(folder))


def remove_unsafe_kernels(folder: Path) -> None:
    """Delete kernels that are links, belong to another user, or were truncated; MLX compiles them again."""
    for path in folder.glob("mlx/*/cpu/lib*.so"):
        with suppress(FileNotFoundError):  # another process may delete the same file
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or not is_complete(path):
                path.unlink()


def is_complete(library: Path) -> bool:
    """Return whether a 64-bit ELF library extends to the end of its section table, which is the file's last part."""
    with library.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or not header.startswith(b"\x7fELF"):
        return False
    (table_offset,) = struct.unpack_from("<Q", header, 40)
    entry_size, entries = struct.unpack_from("<HH", header, 58)
    return bool(table_offset + entry_size * entries <= library.stat().st_size)


def disable_fusion_without_compiler() -> None:
    """Compile a test kernel. If that fails, record the problem and disable fused kernels."""
    if _folder is None or mx.default_device() != mx.cpu:
        return
    problem = compiler_problem(_folder)
    if problem is None:
        try:
            mx.eval(mx.compile(lambda x: mx.exp(x) + 1)(mx.ones(3)))
            return
        except RuntimeError as error:
            reason = str(error).splitlines()[-1]
            problem = f"no kernel can be compiled in {_folder} ({reason}); free space there, or {WAY_OUT}"
    problems.append(f"{UNFUSED}: {problem}")
    mx.disable_compile()


def compiler_problem(folder: Path) -> str | None:
    """Return the reason why MLX cannot use g++, or None. MLX ignores a missing g++, and waits forever if it hangs."""
    if shutil.which("g++") is None:
        return "no compiler is installed; install g++"
    if any(folder.glob("mlx/*/cpu/lib*.so")):  # g++ has compiled a kernel before
        return None
    command = ["g++", "-fsyntax-only", "-x", "c++", os.devnull]
    try:
        subprocess.run(command, stdout=DEVNULL, stderr=DEVNULL, timeout=COMPILER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"g++ did not finish within {COMPILER_SECONDS} s; repair it"
    return None


def raise_kernel_error(error: RuntimeError) -> None:
    """Raise an `InputError` if MLX's error says that it cannot compile or load a kernel."""
    if "[Compile::" in str(error) or "C++ shared library" in str(error):
        reason = str(error).splitlines()[-1]
        raise InputError(f"MLX cannot compile kernels ({reason}); free space, or {WAY_OUT}") from error
