"""From logits to the distribution that is to be preserved. Pure functions on float32; no dice here but `keys`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import mlx.core as mx

from .errors import InputError

MAX_SEED = 2**32 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen.

    temperature: 0 takes the most likely token; above 0 samples from softmax(logits / temperature).
    seed: 0 to 2^32 - 1; the same seed, prompt and settings give the same text.
    """

    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature must be 0 or a positive number, not {self.temperature}")
        if not 0 <= self.seed <= MAX_SEED:
            raise InputError(f"seed must be between 0 and {MAX_SEED}, not {self.seed}")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def logprobs(self, logits: mx.array) -> mx.array:
        """(..., V) raw logits -> (..., V) float32 log-probabilities of the distribution that is sampled from."""
        if self.is_greedy:
            raise ValueError("at temperature 0 there is nothing to sample from")
        scaled = logits.astype(mx.float32) / self.temperature
        return scaled - mx.logsumexp(scaled, axis=-1, keepdims=True)

    def probs(self, logits: mx.array) -> mx.array:
        return mx.exp(self.logprobs(logits))


class Use(IntEnum):
    """What a random number is for; each use has its own stream."""

    DRAFT = 0
    ACCEPT = 1
    NEXT = 2


def key(seed: int, position: int, use: Use) -> mx.array:
    """A random key that depends on nothing but the request's seed, where in its output we are, and the use.

    Rounds start at different positions, so no two rounds of a request share a key, and a request does not
    depend on what ran before it or beside it.
    """
    return mx.array([seed, position * len(Use) + use], mx.uint32)
