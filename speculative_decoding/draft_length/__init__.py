"""How many tokens to draft in a round."""

from __future__ import annotations

from ..errors import InputError
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from .adaptive import AdaptiveLength
from .base import Choice, Drafted, DraftLength, FixedLength, HeuristicLength
from .costs import predicted

__all__ = ["AdaptiveLength", "Choice", "DraftLength", "Drafted", "FixedLength", "HeuristicLength", "choose_length"]


def choose_length(
    num_draft: int | str | DraftLength,
    target: EncoderDecoder | None = None,
    draft_model: EncoderDecoder | DraftHead | None = None,
) -> DraftLength:
    """num_draft: a number, one of `sampling.SCHEDULES`, or a `DraftLength` as it is. The costs that "auto" begins with
    are predicted from the shapes of the models, which only that needs.
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
        assert target is not None
        return AdaptiveLength(predicted(target, draft_model))
    return HeuristicLength(transient=num_draft == "heuristic_transient")
