"""Decoding options, and the distribution from which tokens are sampled. Independent of models and drafters."""

from .constraints import Constraints, History
from .distribution import (
    leaves_logits_unchanged,
    logprobs,
    perturbed_logprobs,
    processed_logits,
    shifted_logprobs,
    token_logprobs,
)
from .drafters import DRAFTERS
from .options import ACCEPTANCE, SCHEDULES, GenerationOptions
from .random import Purpose

__all__ = [
    "ACCEPTANCE",
    "DRAFTERS",
    "SCHEDULES",
    "Constraints",
    "GenerationOptions",
    "History",
    "Purpose",
    "leaves_logits_unchanged",
    "logprobs",
    "perturbed_logprobs",
    "processed_logits",
    "shifted_logprobs",
    "token_logprobs",
]
