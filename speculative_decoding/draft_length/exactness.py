"""The price of exact passes: the share of the speed that they cost compared with the fastest passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .calibration import Calibration, next_power_of_two
from .costs import RoundCosts
from .recommendation import recommend_length


class Price(NamedTuple):
    """What exact passes cost.

    Args:
        share: the share of the speed that is lost, 0 to 1.
        is_possible: whether exact passes exist for the request.
    """

    share: float
    is_possible: bool

    @property
    def is_worth_it(self) -> bool:
        """Whether exact passes are the default."""
        return self.is_possible and self.share < 0.03


IMPOSSIBLE = Price(1.0, False)


def exactness_price(
    calibration: Calibration,
    num_draft_tokens: int | None,
    slots: int,
    acceptance: Sequence[float],
) -> Price:
    """Compare exact passes with the fastest ones.

    Args:
        calibration: costs of the target and the draft.
        num_draft_tokens: a fixed draft length, 0 for baseline decoding, or None for an adaptive length.
        slots: the most rows that are decoded together.
        acceptance: the draft's known acceptance by position, or () if it is unknown.
    """
    rows = next_power_of_two(slots)
    if not calibration.batches_match(slots):
        return IMPOSSIBLE
    fastest = calibration.costs(rows)
    exact = calibration.exact_costs(rows)
    if not exact.passes or not calibration.has_exact_pass(1 + (num_draft_tokens or 0)):
        return IMPOSSIBLE
    if num_draft_tokens is None:
        relative_speed = best_speed(exact, acceptance) / best_speed(fastest, acceptance)
    elif num_draft_tokens >= max(exact.passes):  # wider than any measured pass: both use the same width
        relative_speed = 1.0
    else:
        steps = num_draft_tokens if fastest.step else 0
        relative_speed = fastest.round_seconds(num_draft_tokens, steps) / exact.round_seconds(num_draft_tokens, steps)
    return Price(max(0.0, 1.0 - relative_speed), True)


def best_speed(costs: RoundCosts, acceptance: Sequence[float]) -> float:
    """Tokens per second with the best draft length."""
    typical_acceptance = (0.7,)
    return recommend_length(costs, acceptance or typical_acceptance, baseline=1.0, has_steps=costs.step > 0).speedup
