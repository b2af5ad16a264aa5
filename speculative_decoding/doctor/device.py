"""Describes the device, its memory and MLX, without data that identifies a user or a host."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import mlx.core as mx

from ..draft_length.key import device_name
from ..models.device import gpu_generation, gpu_info, on_gpu, version_numbers
from ..models.memory_budget import available_memory, physical_memory
from ..version import __version__

ARCHITECTURE_VARIABLE = "MLX_METAL_GPU_ARCH"  # read by MLX in metal/device.cpp; MLX treats an empty value as unset
MINIMUM_MLX = (0, 32, 4)  # as in pyproject.toml; a scan over an empty axis crashes before 0.32.3 (ml-explore/mlx#4340)


def device_facts() -> dict[str, Any]:
    """Describe the device.

    architecture is the architecture for which MLX selects kernels: forced_architecture if set, else the one that the
    GPU reports, or None on a CPU. memory_limit is the maximum recommended size of the weights in bytes.
    """
    info = gpu_info()
    return {
        "name": device_name(),
        "kind": "GPU" if on_gpu() else "CPU",
        "architecture": info.get("architecture"),
        "forced_architecture": os.environ.get(ARCHITECTURE_VARIABLE) or None,
        "generation": gpu_generation(),
        "cores": os.cpu_count(),
        "system": f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else platform.system(),
        "machine": platform.machine(),
        "memory": physical_memory(),
        "recommended_working_set": info.get("max_recommended_working_set_size"),
        "memory_limit": available_memory(),
    }


def versions() -> dict[str, str]:
    return {"package": __version__, "mlx": mx.__version__, "python": platform.python_version()}  # type: ignore[attr-defined]


def device_notes(device: dict[str, Any], version: str) -> list[str]:
    """Return the known limitations of this device and of this MLX version, with workarounds."""
    notes = []
    if "Paravirtual" in device["name"]:
        notes.append("this is a virtual machine; its timings do not describe a Mac")
    if device["generation"] is not None and device["generation"] < 15:
        notes.append("M1 and M2: in 16 bits, a pass over 2 or more positions costs about 2x a pass over one")
    if version_numbers(version) < MINIMUM_MLX:
        minimum = ".".join(map(str, MINIMUM_MLX))
        notes.append(f"MLX {version} is older than this package requires; install mlx>={minimum}")
    return notes
