"""Drafters: where proposed tokens come from. A new one is a file here and a branch of `choose_drafter`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
    "model_drafter",
    "new_ngram",
    "with_default_drafter",
]


def with_default_drafter(options: GenerationOptions, draft: object | None) -> GenerationOptions:
    """The options with the name of a drafter, if they have none: the only place that decides the default.

    draft: The draft model or head, or its name, if there is one.
    """
    if options.drafter is not None:
        return options
    if options.num_beams > 1:
        return options.with_values(drafter="none")
    return options.with_values(drafter="ngram" if draft is None else "auto")


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
    make_model_drafter: Callable[[], BatchDrafter] | None = None,
    ngram: NgramDrafter | None = None,
) -> BatchDrafter:
    """Build the drafter of `with_default_drafter`; without a draft model, "auto" is "ngram". Raises `InputError`.

    Args:
        options: The options of all requests.
        target: The target.
        make_model_drafter: Builds the drafter of the draft model or head, if there is one: a `model_drafter`.
        ngram: Drafts copies for "ngram" and "auto"; a new one by default.
    """
    choice = with_default_drafter(options, make_model_drafter).drafter
    check_drafter(choice, make_model_drafter)
    vocab_size = target.config.vocab_size
    if isinstance(choice, BatchDrafter):
        return choice
    if not isinstance(choice, str):
        one = choice if isinstance(choice, Drafter) else CustomDrafter(choice)
        return SeparateDrafters(lambda: one, vocab_size)  # a caller's drafter serves a single request
    if choice == "none":
        return SeparateDrafters(NoDrafter)
    if choice == "model":
        assert make_model_drafter is not None
        return make_model_drafter()
    assert choice in ("ngram", "auto"), f"{choice}: a name in DRAFTERS without a drafter"
    ngram = ngram or new_ngram(target, options.max_ngram_size)
    if choice == "ngram" or make_model_drafter is None:
        return SeparateDrafters(ngram.fresh, vocab_size)
    return AutoDrafter(ngram, make_model_drafter(), vocab_size)


def model_drafter(
    draft_model: DraftModel | DraftHead, target: EncoderDecoder, shares_encoder: bool = False
) -> BatchDrafter:
    """Build the drafter of a draft model or head.

    Args:
        draft_model: Has the target's tokens (`loading.pair.require_same_tokens`).
        target: The target.
        shares_encoder: The draft model's encoder is the target's (`models.shared_encoder`), so its output is reused.
    """
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
