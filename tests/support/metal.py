"""Describes a GPU as MLX's default device, so that the package takes its branches. MLX still computes on the CPU."""

from __future__ import annotations

import platform

import mlx.core as mx
import pytest


def pretend_gpu(
    monkeypatch: pytest.MonkeyPatch, architecture: str = "applegpu_g15s", gigabytes: int = 16, macos: str | None = None
) -> None:
    """Use the branches for a Mac with this GPU and memory. Three quarters of the memory are the GPU's working set.

    macos: the version of the system; None for that of this machine.
    """
    memory = gigabytes * 10**9
    info = {"architecture": architecture, "memory_size": memory, "max_recommended_working_set_size": memory * 3 // 4}
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    monkeypatch.setattr(mx, "device_info", lambda: info)
    if macos is not None:
        monkeypatch.setattr(platform, "mac_ver", lambda: (macos, ("", "", ""), ""))


def pretend_metal(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Pretend to run on a Mac with 16 GB. Returns MLX's limits, which change as they are set."""
    limits = {"wired": 0, "cache": 11}

    def setter(name: str, limit: int) -> int:
        before, limits[name] = limits[name], limit
        return before

    pretend_gpu(monkeypatch)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "set_wired_limit", lambda limit: setter("wired", limit))
    monkeypatch.setattr(mx, "set_cache_limit", lambda limit: setter("cache", limit))
    return limits


def pretend_memory(monkeypatch: pytest.MonkeyPatch, physical: float, available: float) -> None:
    """Use the branches for a GPU that reports exactly these bytes, as CUDA does."""
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    monkeypatch.setattr(mx, "device_info", lambda: {"total_memory": int(physical), "free_memory": int(available)})
