"""The best draft length for a known acceptance rate, from measured costs. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .adaptive import LONGEST, WORTHWHILE
from .costs import TYPICAL_TOKENS, RoundCosts


class Recommendation(NamedTuple):
    """A draft length.

    Args:
        length: draft tokens per round; 0 if drafting is not worthwhile.
        speedup: the expected speedup over baseline decoding.
    """

    length: int
    speedup: float


def recommend_length(
    costs: RoundCosts, acceptance: Sequence[float], *, baseline: float, has_steps: bool
) -> Recommendation:
    """Find the length with the most expected tokens per second.

    Args:
        costs: of a round.
        acceptance: the acceptance rate of each position if all positions before it are accepted. The last rate holds
            for all further positions.
        baseline: seconds of a round without a draft; the speedup is relative to it.
        has_steps: whether a draft model or draft head drafts. Copied drafts take no steps.
    """
    best = Recommendation(0, baseline / costs.baseline)
    least_speedup = WORTHWHILE * best.speedup
    expected_tokens = 1.0
    all_accepted = 1.0
    for length in range(1, LONGEST + 1):
        all_accepted *= acceptance[min(length, len(acceptance)) - 1]
        expected_tokens += all_accepted
        if has_steps:
            prefill = expected_tokens * costs.prefill / TYPICAL_TOKENS
            seconds = costs.round_seconds(length, steps=length) + prefill
        else:
            seconds = costs.round_seconds(length)
        speedup = expected_tokens * baseline / seconds
        if speedup > max(least_speedup, best.speedup):
            best = Recommendation(length, speedup)
    return best
