"""Describes the machine, measures its memory bandwidth, and detects load from other processes."""

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

from speculative_decoding.draft_length.key import device_name
from speculative_decoding.models.device import on_gpu
from speculative_decoding.version import __version__, native_libraries


def environment() -> dict[str, Any]:
    """Return facts about the machine, its software and its current load."""
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
        "blas": native_libraries.get("blas", "MLX's own"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def described(where: Mapping[str, Any]) -> str:
    """Return the facts of `environment` in one line."""
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in where.items())


def output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def measure_bandwidth() -> float:
    """Return the memory bandwidth in bytes per second, as measured with the fastest matrix-vector product.

    On a CPU, NumPy's product is measured as well, because the bandwidth is a limit of the machine, not of MLX.
    """
    rows = 8192  # 268 MB in float32, larger than any cache
    matrix = mx.ones((rows, rows))
    vector = mx.ones((1, rows))
    mx.eval(matrix, vector)
    jobs: list[Callable[[], Any]] = [lambda: mx.eval(vector @ matrix.T), lambda: mx.eval(matrix @ vector[0])]
    if not on_gpu():
        numpy_matrix = np.array(matrix)
        numpy_vector = np.array(vector)[0]
        jobs.append(lambda: numpy_matrix @ numpy_vector)
    times = (timeit.repeat(job, number=1, repeat=15) for job in jobs)
    return matrix.nbytes / min(map(statistics.median, times))


def used_by_others() -> tuple[float, float]:
    """Return the CPU seconds that other processes have used since boot, and the total CPU seconds; zeros if unknown.

    Our subprocesses count as other processes until they end.
    """
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return 0.0, 0.0
    ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
    idle, waiting = ticks[3:5]  # fields: user, nice, system, idle, iowait, irq, softirq, steal
    return sum(ticks) - idle - waiting - sum(os.times()[:4]), sum(ticks)


def notes(where: Mapping[str, Any], before: tuple[float, float], after: tuple[float, float], repeats: int) -> list[str]:
    """Return warnings about the figures.

    Args:
        where: From `environment`.
        before: From `used_by_others`, before the measurement.
        after: From `used_by_others`, after it.
        repeats: Number of measured repeats.
    """
    warnings = []
    if where["load_before"] > 0.5:
        warnings.append(f"the machine was busy at the start (load average {where['load_before']:.1f})")
    total = after[1] - before[1]
    share = (after[0] - before[0]) / total if total > 0 else 0.0
    if share > 0.05:
        warnings.append(f"other processes used {share:.0%} of the processors; repeat this on a quiet machine")
    if repeats < 5:
        warnings.append(f"preliminary: medians of {repeats} repeats")
    return warnings
