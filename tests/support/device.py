"""The device that tests compute on.

Tests use the CPU: exact identity and tolerances of 1e-5 are properties of its float32 arithmetic. GPUs sum in an order
that depends on the shapes. Tests of what depends on the device take the fixture `device`.
"""

from __future__ import annotations

import sys

import mlx.core as mx


def use(device: mx.DeviceType) -> None:
    """Make a device the default of this process."""
    mx.set_default_device(device)
    if sys.platform == "darwin":  # MLX compiles CPU kernels with g++, which a Mac may lack
        (mx.disable_compile if device == mx.cpu else mx.enable_compile)()


def within(tolerance: float) -> float:
    """Return a tolerance on the CPU, or ten times as much on a GPU. A pretended GPU counts, so call this before."""
    return tolerance if mx.default_device().type == mx.cpu else 10 * tolerance
