"""A fast BLAS for Linux without a GPU.

The mlx-cpu wheel for Linux bundles the reference BLAS: a pass over 8 positions then costs eight passes over one, and
speculation cannot win. MLX takes `cblas_sgemm` from whatever library offered it first, so a fast one that is loaded
globally *before* `mlx.core` is imported serves every matrix product. macOS needs none of this.

Knows nothing of the rest of the package, runs no compiler, and never fails: without a fast BLAS all works, slowly.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from contextlib import suppress
from importlib import machinery, metadata, util
from pathlib import Path

VARIABLE = "SPECULATIVE_DECODING_BLAS"  # a library's path, or "none" to keep what MLX brings
SYMBOLS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")  # all that libmlx imports
USED_BY_EXTENSION = ("cblas_sgemm", "cblas_sgemv", "cblas_dgemm", "cblas_cgemm", "openblas_get_num_threads")
PREFIX = "scipy_"  # of every symbol in the scipy-openblas32 wheel
SLOW = "MLX runs on its slow reference BLAS, where speculation cannot win"
INSTALL = "install this package again where there is a C compiler, or a library with: apt install libopenblas0-pthread"

problems: list[str] = []  # what makes MLX slow here, to be said once
_chosen: str | None = None  # the library that MLX calls,
_openblas: ctypes.CDLL | None = None  # and the one that knows its threads


def load_fast_blas() -> None:
    """Find one and load it. Call before the first import of `mlx.core`."""
    named = os.environ.get(VARIABLE)
    if not sys.platform.startswith("linux") or named == "none" or not bundles_reference_blas():
        return
    if "mlx.core" in sys.modules:
        problems.append(f"{SLOW}: mlx was imported before speculative_decoding; import it after")
        return
    try:
        load(named) if named else load_best()
    except OSError as error:
        problems.append(f"{SLOW}: {VARIABLE}: {error}" if named else f"{SLOW}: {error}")


def chosen() -> str | None:
    """The library that was loaded, for benchmark records."""
    return _chosen


def threads() -> int | None:
    """How many threads the loaded OpenBLAS computes with; None if it is another library, or none."""
    for name in ("openblas_get_num_threads", f"{PREFIX}openblas_get_num_threads"):
        if hasattr(_openblas, name):
            return int(getattr(_openblas, name)())
    return None


def warn_if_slow() -> None:
    """Say once what makes MLX slow here, and what to do about it."""
    while problems:
        warnings.warn(problems.pop(), stacklevel=2)


def bundles_reference_blas() -> bool:
    """Only the mlx-cpu wheel does; a CUDA wheel does not compute on the CPU, and own builds link what they found."""
    try:
        metadata.version("mlx-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


def load_best() -> None:
    """Best first, measured at the shapes of a verify pass: docs/LOG.md, "Which BLAS" and "Few rows"."""
    with suppress(OSError):  # no extension: there was no compiler when this package was installed
        return load_extension()
    mkl = sorted(map(str, Path(sys.prefix, "lib").glob("libmkl_rt.so*")))  # pip install mkl
    for library in ("libopenblas.so.0", *mkl):  # the first is Debian's libopenblas0-pthread
        with suppress(OSError):
            return load(library)
    raise OSError(INSTALL)


def load(path: str | Path) -> None:
    """Offer a library's products to all that is loaded after it. OSError if it cannot be loaded or lacks one."""
    global _chosen, _openblas
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    if missing := [symbol for symbol in SYMBOLS if not hasattr(library, symbol)]:
        raise OSError(f"{path} has no {missing[0]}")
    _chosen, _openblas = str(path), library


def load_extension() -> None:
    """Load sgemm.c, as pip compiled it for this Python, and give it OpenBLAS's functions before MLX can call it."""
    global _openblas
    names = [Path(__file__).with_name(f"_sgemm{suffix}") for suffix in machinery.EXTENSION_SUFFIXES]
    extension = next((path for path in names if path.exists()), None)
    wheel = util.find_spec("scipy_openblas32")  # which is found without importing it
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
