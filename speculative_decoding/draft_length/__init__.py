"""How many tokens to draft in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import InputError
from .adaptive import AdaptiveLength
from .base import Choice, Drafted, DraftLength, FixedLength, HeuristicLength
from .costs import RoundCosts

__all__ = ["AdaptiveLength", "Choice", "DraftLength", "Drafted", "FixedLength", "HeuristicLength", "choose_length"]


def choose_length(
    num_draft_tokens: int | str | DraftLength,
    costs: Callable[[int], RoundCosts] | None = None,
    prior: Sequence[float] = (),
) -> DraftLength:
    """num_draft_tokens: a number, one of `sampling.SCHEDULES`, or a `DraftLength` as it is. costs, prior: see
    `AdaptiveLength`; "auto" alone needs them.
    """
    if isinstance(num_draft_tokens, DraftLength):
        return num_draft_tokens
    if isinstance(num_draft_tokens, int):
        return FixedLength(num_draft_tokens)
    if not isinstance(num_draft_tokens, str):
        raise InputError(
            "num_draft_tokens must be a whole number, the name of a schedule or a DraftLength, "
            f"not {num_draft_tokens!r}"
        )
    if num_draft_tokens == "auto":
        assert costs is not None
        return AdaptiveLength(costs, prior=prior)
    return HeuristicLength(transient=num_draft_tokens == "heuristic_transient")
