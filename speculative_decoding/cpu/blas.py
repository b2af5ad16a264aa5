"""Loads a fast BLAS for MLX's CPU wheel, which bundles the slow reference BLAS.

libmlx resolves `cblas_sgemm` to the first library that defines it. A library that is loaded globally *before*
`mlx.core` is imported therefore computes every matmul. Loading never runs a compiler and never fails. If no fast BLAS
is found, MLX is slow.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from importlib import machinery, metadata, util
from pathlib import Path

from ..errors import note
from ..version import native_libraries

VARIABLE = "SPECULATIVE_DECODING_BLAS"  # path of a library, or "none" to keep MLX's own
USED_BY_EXTENSION = ("cblas_sgemm", "cblas_sgemv", "cblas_dgemm", "cblas_cgemm", "openblas_get_num_threads")
PREFIX = "scipy_"  # prefix of every symbol in the scipy-openblas32 wheel
SLOW = "MLX runs on its slow reference BLAS, where speculative decoding gives no speedup"

problems: list[str] = []  # causes of slowness for which no warning has been issued yet
chosen: str | None = None  # path of the library that MLX calls
_openblas: ctypes.CDLL | None = None  # the chosen library if it is OpenBLAS, or the OpenBLAS that it calls


def load_fast_blas() -> None:
    """Find a fast BLAS and load it. Call before the first import of `mlx.core`."""
    requested = os.environ.get(VARIABLE)
    if requested == "none" or not bundles_reference_blas():
        return
    if "mlx.core" in sys.modules:
        problems.append(f"{SLOW}: mlx was imported before speculative_decoding; import speculative_decoding first")
        return
    # After a matmul, OpenBLAS keeps its threads spinning for 2**26 cycles. They would slow down NumPy and `sgemm.c`.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "22")  # 2**22 cycles, about 1.4 ms
    try:
        load(requested) if requested else load_best()
    except OSError as error:
        problems.append(f"{SLOW}: {VARIABLE}: {error}" if requested else f"{SLOW}: {error}")
        return
    native_libraries["blas"] = f"{Path(chosen or '').name}, {threads()} threads"


def threads() -> int | None:
    """Return the number of threads of the loaded OpenBLAS, or None for any other library."""
    for name in ("openblas_get_num_threads", f"{PREFIX}openblas_get_num_threads"):
        if hasattr(_openblas, name):
            return int(getattr(_openblas, name)())
    return None


def warn_about_problems() -> None:
    """Warn once about each cause of slowness found so far."""
    while problems:
        note(problems.pop())


def bundles_reference_blas() -> bool:
    """Return whether MLX comes from the mlx-cpu wheel. CUDA wheels use the GPU; source builds use the system's BLAS."""
    try:
        metadata.version("mlx-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


def load_best() -> None:
    """Load the fastest library available; see README.md for measurements."""
    with suppress(OSError):  # the extension is missing if the package was installed without a compiler
        return load_extension()
    mkl = sorted(map(str, Path(sys.prefix, "lib").glob("libmkl_rt.so*")))  # pip install mkl
    for library in ("libopenblas.so.0", *mkl):  # the first is Debian's libopenblas0-pthread
        with suppress(OSError):
            return load(library)
    raise OSError(
        "reinstall this package with a C compiler present, or install a library: apt install libopenblas0-pthread"
    )


def load(path: str | Path) -> None:
    """Load a library so that MLX finds its symbols. Raises OSError if it cannot be loaded or lacks a symbol."""
    global chosen, _openblas
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    needed = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")  # everything that libmlx imports
    if missing := [symbol for symbol in needed if not hasattr(library, symbol)]:
        raise OSError(f"{path} has no {missing[0]}")
    chosen = str(path)
    _openblas = library


def load_extension() -> None:
    """Load the compiled sgemm.c and pass it OpenBLAS's functions. Raises OSError if either is missing."""
    global _openblas
    names = [Path(__file__).with_name(f"_sgemm{suffix}") for suffix in machinery.EXTENSION_SUFFIXES]
    extension = next((path for path in names if path.exists()), None)
    wheel = util.find_spec("scipy_openblas32")  # located without importing it
    if extension is None or wheel is None or wheel.origin is None:
        raise OSError(f"{names[0]} or scipy-openblas32 is missing")
    openblas = ctypes.CDLL(str(Path(wheel.origin).parent / "lib" / "libscipy_openblas.so"))
    try:
        functions = [ctypes.cast(getattr(openblas, PREFIX + name), ctypes.c_void_p) for name in USED_BY_EXTENSION]
        ctypes.CDLL(str(extension)).speculative_decoding_use_openblas(*functions)
    except AttributeError as error:
        raise OSError(str(error)) from error
    load(extension)
    _openblas = openblas
    if has_tiles():
        native_libraries["equal_rows"] = "float32"


def has_tiles() -> bool:
    """Return whether sgemm.c computes matmuls itself on this processor; otherwise it passes them to OpenBLAS."""
    with suppress(OSError):
        cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        flags = next((line.split() for line in cpu.splitlines() if line.startswith("flags")), [])
        return {"avx2", "fma"} <= set(flags)
    return False
