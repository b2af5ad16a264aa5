"""The machine that is measured on: what it is, how fast it reads, whether others use it. Else a number says nothing."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import timeit
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from speculative_decoding.draft_length.calibration import device_name
from speculative_decoding.linux_cpu import blas
from speculative_decoding.version import __version__

BUSY_LOAD = 0.5  # of a core: load average before anything of ours has run
BUSY_SHARE = 0.05  # of all cores' time, used by others while we measured
BANDWIDTH_ROWS, BANDWIDTH_REPEATS = 8192, 15  # square float32 matrix, 268 MB: no cache holds it


def environment() -> dict[str, Any]:
    """What a reader must know of the machine, its programs and this moment."""
    git = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
        "commit": output(*git) or "unknown",
        "chip": device_name(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "mlx": metadata.version("mlx"),
        "device": str(mx.default_device()),
        "blas": Path(blas.chosen() or "MLX's own").name,
        "blas_threads": blas.threads(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def measure_bandwidth() -> float:
    """Bytes per second that a product of a large float32 matrix with a vector reads: the best of what there is here.

    On a CPU NumPy's product counts too, since the limit is the machine's and not MLX's.
    """
    matrix, vector = (mx.ones((rows, BANDWIDTH_ROWS)) for rows in (BANDWIDTH_ROWS, 1))
    mx.eval(matrix, vector)
    jobs: list[Callable[[], Any]] = [lambda: mx.eval(vector @ matrix.T), lambda: mx.eval(matrix @ vector[0])]
    if mx.default_device() == mx.Device(mx.cpu):
        ours, row = np.array(matrix), np.array(vector)[0]
        jobs.append(lambda: ours @ row)
    times = (timeit.repeat(job, number=1, repeat=BANDWIDTH_REPEATS) for job in jobs)
    return matrix.nbytes / min(map(statistics.median, times))


def used_by_others() -> tuple[float, float]:
    """Processor seconds that others used since the machine started, and all there were; zeros where that is not known.

    Our own processes count as ours once they have ended.
    """
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return 0.0, 0.0
    ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
    idle, waiting = ticks[3:5]  # the others: user, nice, system, irq, softirq, steal
    return sum(ticks) - idle - waiting - sum(os.times()[:4]), sum(ticks)


def notes(where: Mapping[str, Any], before: tuple[float, float], after: tuple[float, float], repeats: int) -> list[str]:
    """What a reader must know before believing the figures. where: `environment`; before, after: `used_by_others`."""
    said = []
    if where["load_before"] > BUSY_LOAD:
        said.append(f"the machine was busy before this started: load average {where['load_before']:.1f}")
    if after[1] > before[1] and (share := (after[0] - before[0]) / (after[1] - before[1])) > BUSY_SHARE:
        said.append(f"other processes used {share:.0%} of the processors meanwhile; repeat it on a quiet machine")
    if repeats < 5:
        said.append(f"medians of {repeats} only; preliminary")
    return said
