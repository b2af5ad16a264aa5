"""How many tokens to draft in a round."""

from __future__ import annotations

from ..errors import InputError
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from .adaptive import AdaptiveLength
from .base import Choice, Drafted, DraftLength, FixedLength
from .costs import predicted

__all__ = ["AdaptiveLength", "Choice", "DraftLength", "Drafted", "FixedLength", "choose_length"]


def choose_length(
    num_draft: int | str | DraftLength,
    target: EncoderDecoder | None = None,
    draft_model: EncoderDecoder | DraftHead | None = None,
) -> DraftLength:
    """num_draft: a number, "auto", or a `DraftLength` as it is. The costs that "auto" begins with
    are predicted from the shapes of the models, which only that needs.
    """
    if isinstance(num_draft, DraftLength):
        return num_draft
    if isinstance(num_draft, int):
        return FixedLength(num_draft)
    if num_draft != "auto":
        raise InputError(f"num_draft must be a whole number, auto or a DraftLength, not {num_draft!r}")
    assert target is not None
    return AdaptiveLength(predicted(target, draft_model))
