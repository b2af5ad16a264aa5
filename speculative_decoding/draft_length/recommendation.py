"""The best draft length for a known acceptance rate, from measured costs. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .adaptive import LONGEST, WORTHWHILE
from .costs import TYPICAL_TOKENS, RoundCosts


class Recommendation(NamedTuple):
    """length: drafted tokens per round, 0 if drafting is not worthwhile. speedup: over decoding without a draft."""

    length: int
    speedup: float


def recommend_length(
    costs: RoundCosts, acceptance: Sequence[float], *, baseline: float, has_steps: bool
) -> Recommendation:
    """acceptance: of each drafted position, given that those before it were accepted; the last holds for all further
    ones.
    baseline: seconds of a pass without a draft. has_steps: whether a draft model or head drafts; copies take no steps.
    """
    best, expected, survives = Recommendation(0, baseline / costs.baseline), 1.0, 1.0
    least = WORTHWHILE * best.speedup
    for length in range(1, LONGEST + 1):
        survives *= acceptance[min(length, len(acceptance)) - 1]
        expected += survives
        seconds = costs.round_seconds(length, length * has_steps)
        seconds += expected * costs.prefill / TYPICAL_TOKENS * has_steps
        speedup = expected * baseline / seconds
        if speedup > max(least, best.speedup):
            best = Recommendation(length, speedup)
    return best
