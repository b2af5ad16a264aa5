"""Chooses the device and the core, precompiles MLX's header for CPU kernels, and exempts modules from collection.

Models are tiny, so tests spend most of their time passing small operations from Python's thread to MLX's thread. Each
process that runs tests therefore stays on one core with batch scheduling, which halves the time of a forward pass.
Subprocesses inherit this. glibc's threads share one heap, because MLX's thread frees what Python's thread allocates.
Results do not depend on either.

On a new machine, the tests compile about 200 kernels, and `g++` spends most of that time on one header. This file
precompiles it before the first test, into the folder that `g++` searches first. `g++` ignores it if its flags differ.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest

from speculative_decoding.checkpoints.base import CheckpointView
from speculative_decoding.loading import load as loading
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.loading.tokenizer import Tokenizer
from speculative_decoding.rooms import has_room
from tests.support.device import use

use(mx.cpu)
os.environ["HF_HUB_OFFLINE"] = "1"  # no test uses the network, except a Hub on loopback (tests/support/hub.py)

HEADER = "mlx/backend/cpu/compiled_preamble.h"
M_ARENA_MAX = -8  # of malloc.h
MLX_FLAGS = ("-std=c++17", "-O3", "-Wall", "-fPIC")  # the flags that MLX uses


@pytest.fixture(params=["cpu", "gpu"] if mx.is_available(mx.gpu) else ["cpu"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test on the CPU, and also on a GPU if there is one."""
    use(getattr(mx, request.param))
    yield request.param
    use(mx.cpu)


@pytest.fixture(scope="session", autouse=True)
def bundled_files() -> Iterator[None]:
    """Read the tokenizer and the weights of each bundled model once: half of the time to load, in hundreds of tests."""
    load_tokenizer, read_view = loading.load_tokenizer, CheckpointView.__getitem__
    load_once = cache(load_tokenizer)
    arrays: dict[tuple[str, str], mx.array] = {}

    def load(folder: Path) -> Tokenizer:
        whole = folder.resolve()
        return load_once(whole) if whole.parent == BUNDLED else load_tokenizer(folder)

    def read(self: CheckpointView, name: str) -> mx.array:
        key = os.path.abspath(str(self)), name
        is_cast = self._dtype is not None and self.info(name).dtype == mx.float32
        if not is_cast or not key[0].startswith(f"{BUNDLED}{os.sep}"):
            return read_view(self, name)
        if key not in arrays:
            arrays[key] = read_view(self, name)
        return arrays[key].view(mx.float32)  # shares the numbers; an assignment to it changes only the view

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load_tokenizer", load)
        patch.setattr(CheckpointView, "__getitem__", read)
        yield


@pytest.fixture
def compilation() -> Iterator[None]:
    """Enable `mx.compile` on a Mac's CPU, too. Only the evaluation of fused operations needs a C++ compiler."""
    mx.enable_compile()
    yield
    use(mx.cpu)


def precompiled() -> Path | None:
    """Return the path of the precompiled header; None if this machine compiles no kernels."""
    if sys.platform != "linux" or mx.default_device() != mx.cpu or shutil.which("g++") is None:
        return None
    folder: Path | None = Path(tempfile.gettempdir())  # MLX's own choice
    if has_room("cpu"):
        from speculative_decoding.cpu import kernels

        folder = kernels._folder
    return folder and folder / "mlx" / mx.__version__ / "cpu" / f"{HEADER}.gch"


def pytest_configure(config: pytest.Config) -> None:
    """Pin this process to a core and to one heap, before MLX starts a thread; not the main process of pytest-xdist."""
    if sys.platform != "linux" or getattr(config.option, "numprocesses", None):
        return
    worker = getattr(config, "workerinput", {}).get("workerid", f"gw{os.getpid()}")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def pytest_sessionstart(session: pytest.Session) -> None:
    path = precompiled()
    if path is None or hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    if len([*path.parents[3].glob("lib*.so")]) > 100:  # most kernels are compiled already
        return
    include = Path(mx.__file__).parent / "include"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, suppress(subprocess.CalledProcessError):
        command = ["g++", *MLX_FLAGS, "-w", "-x", "c++-header", "-I", include, include / HEADER]
        subprocess.run([*command, "-o", f"{folder}/header"], check=True, stderr=sys.stderr)
        os.replace(f"{folder}/header", path)
        session.config.add_cleanup(lambda: path.unlink(missing_ok=True))  # the file is large


def pytest_collection_finish() -> None:
    """Exclude the many objects of collected tests from garbage collection."""
    gc.collect()
    gc.freeze()
