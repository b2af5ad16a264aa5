"""How many tokens to draft in a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import Choice, Drafted, DraftLength
from .schedules import FixedLength, HeuristicLength

__all__ = ["Choice", "DraftLength", "Drafted", "FixedLength", "HeuristicLength", "adaptive_length", "choose_length"]


def choose_length(num_draft: int | str | DraftLength, adaptive: Callable[[], DraftLength] | None = None) -> DraftLength:
    """num_draft: a number, one of `sampling.SCHEDULES`, or a `DraftLength` as it is. adaptive: makes that of "auto"."""
    if isinstance(num_draft, DraftLength):
        return num_draft
    if not isinstance(num_draft, str):
        return FixedLength(num_draft)
    if num_draft == "auto":
        assert adaptive is not None
        return adaptive()
    return HeuristicLength(transient=num_draft == "heuristic_transient")


def adaptive_length(target: Any, draft_model: Any, rows: int) -> DraftLength:
    return FixedLength(5)  # TODO
