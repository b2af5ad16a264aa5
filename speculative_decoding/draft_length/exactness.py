"""What exact passes cost, against the fastest ones that are not exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .calibration import Calibration, next_power_of_two
from .costs import RoundCosts
from .recommendation import recommend_length

USUAL = (0.7,)  # acceptance of a draft of which nothing is known
MOST_PRICE = 0.03  # of the speed: exactness is the default where it costs less


class Price(NamedTuple):
    """share: of the speed that exactness takes, 0 to 1. is_possible: whether there are exact passes at all."""

    share: float
    is_possible: bool

    @property
    def is_worth_it(self) -> bool:
        return self.is_possible and self.share < MOST_PRICE


def exactness_price(
    calibration: Calibration, num_draft_tokens: int | None, slots: int, prior: Sequence[float]
) -> Price:
    """num_draft_tokens: None: an adaptive length; 0: no draft. slots: rows that are decoded together, or fewer."""
    rows = next_power_of_two(slots)
    if not calibration.batches_match(slots):
        return Price(1.0, False)
    fast, exact = calibration.costs(rows), calibration.exact_costs(rows)
    if not exact.passes or not calibration.has_exact_pass(1 + (num_draft_tokens or 0)):
        return Price(1.0, False)
    if num_draft_tokens is None:
        return Price(max(0.0, 1.0 - speed(exact, prior) / speed(fast, prior)), True)
    if num_draft_tokens >= max(exact.passes):  # too wide to have been measured: the same pass in both
        return Price(0.0, True)
    steps = num_draft_tokens * (fast.step > 0)
    return Price(
        max(0.0, 1.0 - fast.round_seconds(num_draft_tokens, steps) / exact.round_seconds(num_draft_tokens, steps)), True
    )


def speed(costs: RoundCosts, prior: Sequence[float]) -> float:
    """Tokens per second with the best draft length."""
    return recommend_length(costs, prior or USUAL, baseline=1.0, has_steps=costs.step > 0).speedup
