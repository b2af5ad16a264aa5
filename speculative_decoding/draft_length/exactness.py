"""The price of exact passes: the share of the speed that they cost compared with the fastest passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .adaptive import recommend_length
from .calibration import Calibration, next_power_of_two


class Price(NamedTuple):
    """What exact passes cost.

    Args:
        share: The share of the speed that is lost, 0 to 1.
        is_possible: Whether exact passes exist for the request.
    """

    share: float
    is_possible: bool

    @property
    def is_worth_it(self) -> bool:
        """Whether exact passes are the default."""
        return self.is_possible and self.share < 0.03


def exactness_price(
    calibration: Calibration,
    num_draft_tokens: int | None,
    slots: int,
    acceptance: Sequence[float],
) -> Price:
    """Compare exact passes with the fastest ones.

    Args:
        calibration: Costs of the target and the draft.
        num_draft_tokens: A fixed draft length, 0 for baseline decoding, or None for an adaptive length.
        slots: The most rows that are decoded together.
        acceptance: The draft's known acceptance by position, or () if it is unknown.
    """
    rows = next_power_of_two(slots)
    if not calibration.batches_match(slots):
        return Price(1.0, is_possible=False)
    fastest = calibration.costs(rows)
    exact = calibration.exact_costs(rows)
    if not exact.passes or not calibration.has_exact_pass(1 + (num_draft_tokens or 0)):
        return Price(1.0, is_possible=False)
    if num_draft_tokens is None:
        typical_acceptance = (0.7,)
        known = acceptance or typical_acceptance
        _, exact_speed = recommend_length(exact, known, baseline=1.0, has_steps=exact.step > 0)
        _, fastest_speed = recommend_length(fastest, known, baseline=1.0, has_steps=fastest.step > 0)
        relative_speed = exact_speed / fastest_speed
    elif num_draft_tokens >= max(exact.passes):  # wider than any measured pass: both use the same width
        relative_speed = 1.0
    else:
        steps = num_draft_tokens if fastest.step else 0
        relative_speed = fastest.round_seconds(num_draft_tokens, steps) / exact.round_seconds(num_draft_tokens, steps)
    return Price(max(0.0, 1.0 - relative_speed), is_possible=True)
