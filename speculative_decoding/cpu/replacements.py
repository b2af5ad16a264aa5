"""The replacements for CPUs. Each has the same name as the `@replaced_on_cpu` function that it replaces."""

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
