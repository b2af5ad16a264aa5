"""Drafters: where proposed tokens come from. A new one is a file here and a line below."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from ..sampling import DRAFTERS, GenerationOptions
from .alignment import Pieces
from .auto import AutoDrafter
from .base import BatchDrafter, Draft, Drafter, DraftRequest, RequestView
from .draft_model import DraftModel
from .head import BatchHeadDrafter
from .model import BatchModelDrafter
from .ngram import NgramDrafter
from .separate import CustomDrafter, NoDrafter, SeparateDrafters
from .text_store import TextStore

__all__ = [
    "AutoDrafter",
    "BatchDrafter",
    "BatchHeadDrafter",
    "BatchModelDrafter",
    "Draft",
    "DraftHead",
    "DraftModel",
    "DraftRequest",
    "Drafter",
    "NgramDrafter",
    "NoDrafter",
    "RequestView",
    "SeparateDrafters",
    "TextStore",
    "check_drafter",
    "choose_drafter",
    "default_drafter",
    "new_ngram",
]


def default_drafter(draft: object | None, num_beams: int = 1) -> str:
    """The name of the drafter that is used unless another is chosen."""
    if num_beams > 1:
        return "none"
    return "ngram" if draft is None else "auto"


def check_drafter(drafter: object, draft: object | None) -> None:
    """Raise `InputError` unless the drafter can be built with this draft model or head, if there is one."""
    if drafter == "model" and draft is None:
        raise InputError("model needs a draft model", "drafter", "name one, or choose ngram")
    is_custom = drafter is not None and not isinstance(drafter, str | BatchDrafter)
    if is_custom and not all(callable(getattr(drafter, name, None)) for name in ("begin", "propose")):
        raise InputError(f"must be one of {', '.join(DRAFTERS)}, or have begin and propose, not {drafter!r}", "drafter")


def choose_drafter(
    options: GenerationOptions,
    target: EncoderDecoder,
    draft_model: DraftModel | DraftHead | None = None,
    ngram: NgramDrafter | None = None,
    *,
    shares_encoder: bool = False,
) -> BatchDrafter:
    """Build the drafter that `options.drafter` names; without a draft model, "auto" is "ngram". Raises `InputError`.

    Args:
        options: The options of all requests.
        target: The target.
        draft_model: Has the target's tokens (`loading.pair.require_same_tokens`).
        ngram: Drafts copies for "ngram" and "auto"; a new one by default.
        shares_encoder: The draft model's encoder is the target's (`models.shared_encoder`), so its output is reused.
    """
    check_drafter(options.drafter, draft_model)
    choice = default_drafter(draft_model) if options.drafter is None else options.drafter
    vocab_size = target.config.vocab_size
    if not isinstance(choice, str):
        if isinstance(choice, BatchDrafter):
            return choice
        one = choice if isinstance(choice, Drafter) else CustomDrafter(choice)
        return SeparateDrafters(lambda: one, vocab_size)  # a caller's drafter serves a single request
    if choice == "none":
        return SeparateDrafters(NoDrafter)
    if choice == "model":
        assert draft_model is not None
        return model_drafter(draft_model, target, shares_encoder)
    ngram = ngram or new_ngram(target, options.max_ngram_size)
    if choice == "ngram" or draft_model is None:
        return SeparateDrafters(ngram.fresh, vocab_size)
    return AutoDrafter(ngram, model_drafter(draft_model, target, shares_encoder), vocab_size)


def model_drafter(
    draft_model: DraftModel | DraftHead, target: EncoderDecoder, shares_encoder: bool = False
) -> BatchDrafter:
    if isinstance(draft_model, DraftHead):
        return BatchHeadDrafter(draft_model, target)
    return BatchModelDrafter(draft_model, target.config.vocab_size, shares_encoder=shares_encoder)


def new_ngram(target: EncoderDecoder, max_ngram_size: int) -> NgramDrafter:
    """A drafter without a text store, with the initial acceptance rates."""
    pieces = None if target.pieces is None else pieces_of(target.pieces)
    return NgramDrafter(pieces=pieces, max_ngram_size=max_ngram_size)


_last_pieces: tuple[Mapping[int, str], Pieces] | None = None


def pieces_of(pieces: Mapping[int, str]) -> Pieces:
    """`Pieces.from_vocabulary`, cached: it takes some milliseconds, which every call without a session would repeat."""
    global _last_pieces
    if _last_pieces is None or _last_pieces[0] is not pieces:
        _last_pieces = pieces, Pieces.from_vocabulary(pieces)
    return _last_pieces[1]
