"""The operations that this folder replaces: each name is that of a function with `@replaced_on_cpu` in the core."""

from .encoder import encode_window, inference_projections
from .exponentials import gelu
from .exponentials import softmax as window_softmax
from .losses import exp_sums, training_loss

__all__ = [
    "encode_window",
    "exp_sums",
    "gelu",
    "inference_projections",
    "training_loss",
    "window_softmax",
]
