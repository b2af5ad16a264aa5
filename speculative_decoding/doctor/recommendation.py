"""Recommends a draft length for known costs and acceptance rates. Decoding estimates the rates itself."""

from __future__ import annotations

from collections.abc import Sequence

from ..draft_length.adaptive import LONGEST, WORTHWHILE
from ..draft_length.passes import TYPICAL_TOKENS, RoundCosts


def recommend_length(
    costs: RoundCosts, acceptance: Sequence[float], *, baseline: float, has_steps: bool
) -> tuple[int, float]:
    """Find the length with the most expected tokens per cost for known acceptance rates.

    Args:
        costs: The costs of a round.
        acceptance: The acceptance rate of each position if all positions before it are accepted. The last rate holds
            for all further positions.
        baseline: The cost of a round without a draft; the speedup is relative to it.
        has_steps: Whether a draft model or draft head drafts. Copied drafts take no steps.

    Returns:
        Draft tokens per round, 0 if drafting is not worthwhile, and the expected speedup over baseline decoding.
    """
    best = 0
    best_speedup = baseline / costs.baseline
    least_speedup = WORTHWHILE * best_speedup
    expected_tokens = 1.0
    all_accepted = 1.0
    for length in range(1, LONGEST + 1):
        all_accepted *= acceptance[min(length, len(acceptance)) - 1]
        expected_tokens += all_accepted
        if has_steps:
            prefill = expected_tokens * costs.prefill / TYPICAL_TOKENS
            cost = costs.round_cost(length, steps=length) + prefill
        else:
            cost = costs.round_cost(length)
        speedup = expected_tokens * baseline / cost
        if speedup > max(least_speedup, best_speedup):
            best = length
            best_speedup = speedup
    return best, best_speedup
