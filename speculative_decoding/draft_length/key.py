"""The key under which measurements are stored: everything on which the cost and the bits of a pass depend."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..models.base import EncoderDecoder
from ..models.device import gpu_info, on_gpu
from ..version import __version__, native_libraries


def calibration_key(target: EncoderDecoder) -> str:
    """Everything on which this target's measurements depend, as JSON."""
    device = mx.default_device()
    facts = {
        "target": fingerprint(target),
        "device": f"{device.type.name} {device_name()}",
        # MLX chooses kernels by the architecture, which MLX_METAL_GPU_ARCH can override. All virtual Macs have the same
        # device name.
        "architecture": gpu_info().get("architecture"),
        "system": platform.release() if sys.platform == "darwin" else sys.platform,
        "mlx": mx.__version__,  # type: ignore[attr-defined]
        "package": __version__,
        "threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "blas": native_libraries.get("blas"),
        "tf32": os.environ.get("MLX_ENABLE_TF32"),
        "ranks": target.ranks,
    }
    return json.dumps(facts, sort_keys=True)


def device_name() -> str:
    """The name of the GPU or CPU on which MLX computes."""
    if on_gpu():
        return str(mx.device_info().get("device_name", "GPU"))
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            command = ("sysctl", "-n", "machdep.cpu.brand_string")
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "CPU")
    return platform.processor() or platform.machine()


def fingerprint(network: nn.Module) -> str:
    """A hash of everything in a network that affects its speed and bits: configuration, parameter shapes and dtypes."""
    parameters: Any = tree_flatten(network.parameters())
    shapes = sorted((path, str(array.shape), str(array.dtype)) for path, array in parameters)
    text = f"{type(network).__name__} {getattr(network, 'config', None)!r} {shapes}"
    return sha256(text.encode()).hexdigest()[:16]


def gives_any_width_the_same_bits(target: EncoderDecoder) -> bool:
    """Whether this target's matmuls compute a row in the same way in any pass, so that no comparison is needed.

    `cpu/sgemm.c` does so for float32. All other operations compute each row independently.
    """
    if on_gpu() or target.ranks > 1 or "equal_rows" not in native_libraries:
        return False
    parameters: Any = tree_flatten(target.parameters())
    return all(array.dtype == mx.float32 for _, array in parameters)
