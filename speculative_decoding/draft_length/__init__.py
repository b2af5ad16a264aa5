"""How many tokens to draft in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import InputError
from .adaptive import AdaptiveLength
from .base import DraftLength, DraftOutcome, FixedLength
from .costs import RoundCosts

__all__ = ["AdaptiveLength", "DraftLength", "DraftOutcome", "FixedLength", "choose_length"]


def choose_length(
    num_draft_tokens: int | str | DraftLength,
    costs: Callable[[int], RoundCosts] | None = None,
    prior: Sequence[float] = (),
) -> DraftLength:
    """The draft length that `num_draft_tokens` names.

    Args:
        num_draft_tokens: a number, "auto" for `AdaptiveLength`, or a `DraftLength`, which is returned as it is.
        costs: see `AdaptiveLength`.
        prior: see `AdaptiveLength`.
    """
    if isinstance(num_draft_tokens, DraftLength):
        return num_draft_tokens
    if isinstance(num_draft_tokens, int):
        return FixedLength(num_draft_tokens)
    if num_draft_tokens != "auto":
        raise InputError(f"num_draft_tokens must be a whole number, auto or a DraftLength, not {num_draft_tokens!r}")
    assert costs is not None
    return AdaptiveLength(costs, prior=prior)
