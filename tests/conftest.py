"""On a fresh machine the tests need some 200 of MLX's kernels, and most of what `g++` does for each is to read the same
header. So it reads that once, before the first test, and finds the result where it looks first: beside the kernels.
They are the same kernels; a result that does not fit MLX's flags is not used.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import mlx.core as mx
import pytest

from speculative_decoding.linux_cpu import kernels

HEADER = "mlx/backend/cpu/compiled_preamble.h"
AS_MLX_DOES = ("-std=c++17", "-O3", "-Wall", "-fPIC")  # flags that are not those of the kernels make it of no use
MANY = 100  # kernels: where there are as many, few are new


def precompiled() -> Path | None:
    """Where the header belongs; None where no kernels are compiled."""
    if kernels._folder is None or mx.default_device() != mx.cpu or shutil.which("g++") is None:
        return None
    return kernels._folder / "mlx" / mx.__version__ / "cpu" / f"{HEADER}.gch"


def pytest_sessionstart(session: pytest.Session) -> None:
    path = precompiled()
    if path is None or hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    if len([*path.parents[3].glob("lib*.so")]) >= MANY:
        return
    include = Path(mx.__file__).parent / "include"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, suppress(subprocess.CalledProcessError):
        command = ["g++", *AS_MLX_DOES, "-w", "-x", "c++-header", "-I", include, include / HEADER]
        subprocess.run([*command, "-o", f"{folder}/header"], check=True, stderr=sys.stderr)
        os.replace(f"{folder}/header", path)
        session.config.add_cleanup(lambda: path.unlink(missing_ok=True))  # large, and may outlive the header itself


def pytest_collection_finish() -> None:
    """Spares the garbage collector the thousands of objects of tests that stay."""
    gc.collect()
    gc.freeze()
