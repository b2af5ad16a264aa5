"""The device, its memory and its MLX, as facts that name neither a user nor a host."""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import Any

import mlx.core as mx

from ..draft_length.calibration import device_name
from ..models.memory_budget import available_memory
from ..version import __version__

GEMV_WIDE = (0, 32, 1), 15  # the first MLX with it, and the first generation of Apple's GPUs that it serves (M3)
SAFE_SCANS = (0, 32, 3)  # ml-explore/mlx#4340
TF32 = (26, 2), 17  # the first macOS and GPU generation (M5) with it


def device_facts() -> dict[str, Any]:
    """memory_limit: bytes that weights should not exceed."""
    is_gpu = mx.default_device().type == mx.gpu
    info = mx.device_info() if is_gpu else {}
    architecture = str(info["architecture"]) if "architecture" in info else None
    recommended = info.get("max_recommended_working_set_size")
    return {
        "name": device_name(),
        "kind": "GPU" if is_gpu else "CPU",
        "architecture": architecture,
        "generation": generation(architecture or ""),
        "cores": os.cpu_count(),
        "system": f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else platform.system(),
        "machine": platform.machine(),
        "memory": int(info.get("memory_size") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        "recommended_working_set": None if recommended is None else int(recommended),
        "memory_limit": int(recommended or info.get("free_memory") or available_memory()),
    }


def versions() -> dict[str, str]:
    mlx: str = mx.__version__  # type: ignore[attr-defined]
    return {"package": __version__, "mlx": mlx, "python": platform.python_version()}


def generation(architecture: str) -> int | None:
    """15 of "applegpu_g15s"; None of anything else."""
    match = re.search(r"applegpu_g(\d\d)\w?$", architecture)
    return int(match[1]) if match else None


def tf32(device: dict[str, Any]) -> bool | None:
    """Whether MLX rounds float32 products on this device to TF32; None where macOS is not the system."""
    if not device["system"].startswith("macOS"):
        return None
    least, first = TF32
    is_there = numbers(device["system"]) >= least and (device["generation"] or 0) >= first
    return is_there and os.environ.get("MLX_ENABLE_TF32") != "0"


def mlx_notes(device: dict[str, Any], version: str) -> list[str]:
    """What this version of MLX lacks on this device, with the way out."""
    notes = []
    least, first = GEMV_WIDE
    if device["generation"] is not None:
        if device["generation"] < first:
            notes.append("M1 and M2: in 16 bits, a pass over 2 or more positions costs about 2x a pass over one")
        elif numbers(version) < least:
            notes.append(
                f"MLX {version} has no gemv_wide: in 16 bits, a pass over 2 or more positions costs about 2x a pass "
                "over one; install mlx>=0.32.1"
            )
    if numbers(version) < SAFE_SCANS:
        notes.append(f"MLX {version} can crash when it samples without a draft; install mlx>=0.32.3")
    return notes


def numbers(version: str) -> tuple[int, ...]:
    """(0, 32, 4) of "0.32.4.dev1", and (26, 2) of "macOS 26.2"."""
    match = re.search(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
