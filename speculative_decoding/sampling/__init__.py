"""What may be asked of decoding, and the distribution that tokens are drawn from. Knows no model and no draft."""

from .distribution import History, logprobs, perturbed, scores, token_logprobs
from .options import ACCEPTANCE, DRAFTERS, SCHEDULES, GenerationOptions
from .random import Use

__all__ = [
    "ACCEPTANCE",
    "DRAFTERS",
    "SCHEDULES",
    "GenerationOptions",
    "History",
    "Use",
    "logprobs",
    "perturbed",
    "scores",
    "token_logprobs",
]
