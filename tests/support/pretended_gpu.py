"""Describes an Apple GPU as MLX's default device. MLX still computes on the CPU."""

from __future__ import annotations

import mlx.core as mx
import pytest


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, architecture: str = "applegpu_g15s", gigabytes: int = 16) -> None:
    """Use the branches for a Mac with this GPU and memory. Three quarters of the memory are the GPU's working set."""
    memory = gigabytes * 10**9
    info = {"architecture": architecture, "memory_size": memory, "max_recommended_working_set_size": memory * 3 // 4}
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    monkeypatch.setattr(mx, "device_info", lambda: info)
