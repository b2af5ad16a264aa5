"""Drafters: where proposed tokens come from. A new one is a file here and a line below."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..errors import InputError
from ..loading.tokenizer import Vocabulary
from ..models.base import EncoderDecoder
from .alignment import Pieces
from .auto import AutoDrafter
from .base import Draft, Drafter, NoDrafter
from .batch import Asked, BatchDrafter, SeparateDrafters
from .model import BatchModelDrafter, DraftModel, ModelDrafter, require_same_tokens
from .ngram import Match, NgramDrafter
from .ngram_store import NgramStore, Store, TextStore

__all__ = [
    "DRAFTERS",
    "Asked",
    "AutoDrafter",
    "BatchDrafter",
    "BatchModelDrafter",
    "Draft",
    "DraftModel",
    "Drafter",
    "Match",
    "ModelDrafter",
    "NgramDrafter",
    "NgramStore",
    "NoDrafter",
    "SeparateDrafters",
    "Store",
    "TextStore",
    "choose_drafter",
]

DRAFTERS = ("model", "ngram", "auto", "none")


def choose_drafter(
    choice: str | Drafter | BatchDrafter | None,
    target: EncoderDecoder,
    draft_model: EncoderDecoder | DraftModel | None = None,
    ngram: NgramDrafter | None = None,
    slots: int = 1,
) -> BatchDrafter:
    """One of `DRAFTERS`, or an object with `begin` and `propose`; None is "model", or "none" without a draft model.

    "auto" is "ngram" without a draft model. Raises `InputError` that names the argument.
    """
    if choice is None:
        choice = "none" if draft_model is None else "model"
    if isinstance(choice, str) and choice not in DRAFTERS:
        raise InputError(f"drafter must be one of {', '.join(DRAFTERS)}, or an object, not {choice!r}")
    if choice == "model" and draft_model is None:
        raise InputError("drafter 'model' needs a draft model; name one, or choose 'ngram'")
    if draft_model is not None:
        speaker = draft_model if isinstance(draft_model, DraftModel) else DraftModel(draft_model)
        require_same_tokens(target, speaker.model)
    if not isinstance(choice, str):
        return one_drafter(choice)
    if choice == "none":
        return SeparateDrafters(lambda sampling, coupled: NoDrafter())
    if choice == "model":
        return BatchModelDrafter(speaker, target, slots)
    if ngram is None:
        ngram = NgramDrafter(pieces=None if target.tokenizer is None else pieces_of(target.tokenizer.vocabulary))
    if choice == "ngram" or draft_model is None:
        return SeparateDrafters(lambda sampling, coupled: ngram.fresh())
    return AutoDrafter(ngram, BatchModelDrafter(speaker, target, slots))


@lru_cache(maxsize=4)
def pieces_of(vocabulary: Vocabulary) -> Pieces:
    """Looks at every piece: some milliseconds, which callers without a session would pay for each prompt."""
    return Pieces.of(vocabulary.pieces)


def one_drafter(drafter: Drafter | BatchDrafter) -> BatchDrafter:
    """For a single row: the object that a caller brought."""
    if isinstance(drafter, BatchDrafter):
        return drafter
    for name in ("begin", "propose"):
        if not callable(getattr(drafter, name, None)):
            raise InputError(
                f"drafter must be one of {', '.join(DRAFTERS)}, or have begin and propose, not {drafter!r}"
            )
    mine = drafter if isinstance(drafter, Drafter | NgramDrafter) else Brought(drafter)
    return SeparateDrafters(lambda sampling, coupled: mine)


class Brought(Drafter):
    """Any object with `begin` and `propose`, which need know of nothing else."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter

    def begin(self, input_tokens: Sequence[int]) -> None:
        self._drafter.begin(input_tokens)

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        draft: Draft = self._drafter.propose(tokens, num_draft_tokens)
        return draft
