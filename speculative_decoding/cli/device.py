"""Describes the device, its memory and MLX, without data that identifies a user or host."""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import Any

import mlx.core as mx

from ..draft_length.calibration import device_name
from ..models.device import on_gpu
from ..models.memory_budget import available_memory
from ..version import __version__

MINIMUM_MLX = (0, 32, 4)  # as in pyproject.toml; a scan over an empty axis crashes before 0.32.3 (ml-explore/mlx#4340)


def device_facts() -> dict[str, Any]:
    """Describe the device. memory_limit is the maximum recommended size of the weights in bytes."""
    info = mx.device_info() if on_gpu() else {}
    architecture = str(info["architecture"]) if "architecture" in info else None
    recommended = info.get("max_recommended_working_set_size")
    return {
        "name": device_name(),
        "kind": "GPU" if on_gpu() else "CPU",
        "architecture": architecture,
        "generation": gpu_generation(architecture or ""),
        "cores": os.cpu_count(),
        "system": f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else platform.system(),
        "machine": platform.machine(),
        "memory": int(info.get("memory_size") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        "recommended_working_set": None if recommended is None else int(recommended),
        "memory_limit": int(recommended or info.get("free_memory") or available_memory()),
    }


def versions() -> dict[str, str]:
    return {"package": __version__, "mlx": mx.__version__, "python": platform.python_version()}  # type: ignore[attr-defined]


def gpu_generation(architecture: str) -> int | None:
    """Return 15 for "applegpu_g15s", and None for anything but an Apple GPU."""
    match = re.search(r"applegpu_g(\d\d)\w?$", architecture)
    return int(match[1]) if match else None


def uses_tf32(device: dict[str, Any]) -> bool | None:
    """Return whether MLX rounds float32 matmuls to TF32 on this device; None on systems other than macOS."""
    if not device["system"].startswith("macOS"):
        return None
    is_supported = version_numbers(device["system"]) >= (26, 2) and (device["generation"] or 0) >= 17  # M5
    return is_supported and os.environ.get("MLX_ENABLE_TF32") != "0"


def mlx_notes(device: dict[str, Any], version: str) -> list[str]:
    """Return the known limitations of this version of MLX on this device, with workarounds."""
    notes = []
    if device["generation"] is not None and device["generation"] < 15:
        notes.append("M1 and M2: in 16 bits, a pass over 2 or more positions costs about 2x a pass over one")
    if version_numbers(version) < MINIMUM_MLX:
        minimum = ".".join(map(str, MINIMUM_MLX))
        notes.append(f"MLX {version} is older than this package requires; install mlx>={minimum}")
    return notes


def version_numbers(version: str) -> tuple[int, ...]:
    """Return (0, 32, 4) for "0.32.4.dev1", and (26, 2) for "macOS 26.2"."""
    match = re.search(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
