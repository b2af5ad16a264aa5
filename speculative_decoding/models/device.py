"""The device that computes."""

from __future__ import annotations

import mlx.core as mx


def on_gpu() -> bool:
    """Return whether MLX's default device is a GPU."""
    return mx.default_device().type == mx.gpu
