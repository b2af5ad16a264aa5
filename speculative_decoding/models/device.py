"""Properties of MLX's default device, which runs the models."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

import mlx.core as mx


def on_gpu() -> bool:
    """Return whether MLX's default device is a GPU."""
    return mx.default_device().type == mx.gpu


def gpu_info() -> dict[str, Any]:
    """Return MLX's device information for the GPU, or an empty dict if the default device is a CPU."""
    return mx.device_info() if on_gpu() else {}


def gpu_generation() -> int | None:
    """Return an Apple GPU's generation: 13 for M1, 14 for M2, ..., 17 for M5. Returns None for other devices."""
    match = re.fullmatch(r"applegpu_g(\d\d)[a-z]", gpu_info().get("architecture", ""))
    return int(match[1]) if match else None


def emulates_bfloat16() -> bool:
    """Return whether the GPU emulates bfloat16 in software, as on M1 and M2, where float16 is faster."""
    return gpu_generation() in (13, 14)


def uses_tf32() -> bool | None:
    """Return whether MLX computes float32 matmuls with several rows in TF32, or None on systems other than macOS.

    This follows `is_nax_available` and `enable_tf32` in MLX.
    """
    version = platform.mac_ver()[0]
    if not version:
        return None
    is_phone_chip = gpu_info().get("architecture", "").endswith("p")
    has_matrix_units = (gpu_generation() or 0) >= (18 if is_phone_chip else 17) and version_numbers(version) >= (26, 2)
    return has_matrix_units and os.environ.get("MLX_ENABLE_TF32") != "0"


def version_numbers(version: str) -> tuple[int, ...]:
    """Return (0, 32, 4) for "0.32.4.dev1", and (26, 2) for "macOS 26.2"."""
    match = re.search(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
