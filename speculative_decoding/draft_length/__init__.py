"""How many tokens to draft in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import InputError
from .adaptive import AdaptiveLength
from .base import Choice, Drafted, DraftLength, FixedLength, HeuristicLength
from .costs import RoundCosts

__all__ = ["AdaptiveLength", "Choice", "DraftLength", "Drafted", "FixedLength", "HeuristicLength", "choose_length"]


def choose_length(
    num_draft: int | str | DraftLength,
    costs: Callable[[int], RoundCosts] | None = None,
    prior: Sequence[float] = (),
) -> DraftLength:
    """num_draft: a number, one of `sampling.SCHEDULES`, or a `DraftLength` as it is. costs, prior: see
    `AdaptiveLength`; "auto" alone needs them.
    """
    if isinstance(num_draft, DraftLength):
        return num_draft
    if isinstance(num_draft, int):
        return FixedLength(num_draft)
    if not isinstance(num_draft, str):
        raise InputError(
            f"num_draft must be a whole number, the name of a schedule or a DraftLength, not {num_draft!r}"
        )
    if num_draft == "auto":
        assert costs is not None
        return AdaptiveLength(costs, prior=prior)
    return HeuristicLength(transient=num_draft == "heuristic_transient")
