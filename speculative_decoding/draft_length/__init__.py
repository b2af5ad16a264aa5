"""How many tokens to draft in a round."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InputError
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from .adaptive import AdaptiveLength
from .base import Choice, Drafted, DraftLength
from .costs import predicted
from .schedules import FixedLength, HeuristicLength

__all__ = [
    "AdaptiveLength",
    "Choice",
    "DraftLength",
    "Drafted",
    "FixedLength",
    "HeuristicLength",
    "adaptive_length",
    "choose_length",
]


def choose_length(num_draft: int | str | DraftLength, adaptive: Callable[[], DraftLength] | None = None) -> DraftLength:
    """num_draft: a number, one of `sampling.SCHEDULES`, or a `DraftLength` as it is. adaptive: makes that of "auto"."""
    if isinstance(num_draft, DraftLength):
        return num_draft
    if isinstance(num_draft, int):
        return FixedLength(num_draft)
    if not isinstance(num_draft, str):
        raise InputError(
            f"num_draft must be a whole number, the name of a schedule or a DraftLength, not {num_draft!r}"
        )
    if num_draft == "auto":
        assert adaptive is not None
        return adaptive()
    return HeuristicLength(transient=num_draft == "heuristic_transient")


def adaptive_length(target: EncoderDecoder, draft_model: EncoderDecoder | DraftHead | None = None) -> DraftLength:
    """That of "auto". Its costs are predicted from the models' shapes, for any number of rows; nothing is measured."""
    return AdaptiveLength(predicted(target, draft_model))
