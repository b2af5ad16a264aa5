"""Where and when a measurement was taken: without it a number says nothing."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx

from speculative_decoding import blas
from speculative_decoding.version import __version__

BUSY_LOAD = 0.5  # of a core: load average before anything of ours has run
BUSY_SHARE = 0.05  # of all cores' time, used by others while we measured


@dataclass(frozen=True)
class Environment:
    chip: str
    cores: int
    system: str
    python: str
    mlx: str
    device: str
    dtype: str
    blas: str
    blas_threads: int | None
    version: str
    commit: str
    date: str
    load_before: float  # average over the minute before the measurement

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def environment(dtype: str, load_before: float) -> Environment:
    return Environment(
        chip=chip(),
        cores=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        mlx=metadata.version("mlx"),
        device=str(mx.default_device()),
        dtype=dtype,
        blas=Path(blas.chosen() or "MLX's own").name,
        blas_threads=blas_threads(),
        version=__version__,
        commit=commit(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        load_before=load_before,
    )


def chip() -> str:
    if platform.system() == "Darwin":
        return output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str:
    """The checkout's commit, with a mark if files were changed since; "unknown" outside of one."""
    root = str(Path(__file__).resolve().parents[1])
    found = output("git", "-C", root, "rev-parse", "--short=12", "HEAD")
    changed = output("git", "-C", root, "status", "--porcelain", "--untracked-files=no")
    return (found + ("+changes" if changed else "")) if found else "unknown"


def blas_threads() -> int | None:
    """How many threads the loaded OpenBLAS uses; None if it is another library."""
    if (path := blas.chosen()) is None:
        return None
    library = ctypes.CDLL(path)
    for name in ("openblas_get_num_threads", "scipy_openblas_get_num_threads"):
        if hasattr(library, name):
            return int(getattr(library, name)())
    return None


def output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


class OtherWork:
    """How much of the machine others used between its making and `share`. Linux only; elsewhere None.

    Our own processes count as ours once they have ended.
    """

    def __init__(self) -> None:
        self._busy, self._all = processor_seconds()
        self._ours = own_seconds()

    def share(self) -> float | None:
        busy, all_ = processor_seconds()
        if all_ <= self._all:
            return None
        others = (busy - self._busy) - (own_seconds() - self._ours)
        return min(max(others / (all_ - self._all), 0.0), 1.0)


def processor_seconds() -> tuple[float, float]:
    """Seconds in which processors were busy, and all their seconds, since the machine started."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return 0.0, 0.0
    ticks = [
        int(field) / os.sysconf("SC_CLK_TCK") for field in fields
    ]  # user nice system idle iowait irq softirq steal
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def notes(load_before: float, others: float | None, repeats: int) -> Sequence[str]:
    """What a reader must know before believing the figures."""
    said = []
    if load_before > BUSY_LOAD:
        said.append(f"the machine was busy before this started: load average {load_before:.1f}")
    if others is not None and others > BUSY_SHARE:
        said.append(f"other processes used {others:.0%} of the processors meanwhile; repeat it on a quiet machine")
    if repeats < 5:
        said.append(f"medians of {repeats} only; preliminary")
    return said
