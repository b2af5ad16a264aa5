"""Drafters, which propose the draft tokens. `sampling.drafters` lists them by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import InputError, Message
from ..loading.pair import token_difference
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from ..sampling import GenerationOptions
from ..sampling.drafters import DRAFTERS
from .base import BatchDrafter, Draft, Drafter, RequestView, is_drafter, makes_drafters
from .ngram import NgramDrafter

if TYPE_CHECKING:
    from .auto import AutoDrafter
    from .draft_model import DraftModel, DraftVocabulary
    from .head import BatchHeadDrafter
    from .model import BatchModelDrafter
    from .none import NoDrafter
    from .separate import SeparateDrafters
    from .text_store import TextStore

LAZY = {  # class -> module, imported on first use
    "AutoDrafter": "auto",
    "BatchHeadDrafter": "head",
    "BatchModelDrafter": "model",
    "DraftModel": "draft_model",
    "NoDrafter": "none",
    "SeparateDrafters": "separate",
    "TextStore": "text_store",
}

__all__ = [
    "AutoDrafter",
    "BatchDrafter",
    "BatchHeadDrafter",
    "BatchModelDrafter",
    "Draft",
    "DraftHead",
    "DraftModel",
    "Drafter",
    "NgramDrafter",
    "NoDrafter",
    "RequestView",
    "SeparateDrafters",
    "TextStore",
    "check_drafter",
    "checked_draft",
    "choose_drafter",
    "model_drafter",
    "with_default_drafter",
]


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(import_module(f".{LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def with_default_drafter(options: GenerationOptions, draft: object | None) -> GenerationOptions:
    """Return the options, with the default drafter if they name none. The default is determined only here.

    draft: The draft model or head, or its name; None if there is neither.
    """
    if options.drafter is not None:
        return options
    if options.num_beams > 1:
        return options.with_values(drafter="none")
    return options.with_values(drafter="ngram" if draft is None else "auto")


def check_drafter(drafter: object, draft: object | None) -> None:
    """Raise `InputError` if the drafter cannot be built with `draft`: a draft model or head, or None."""
    if isinstance(drafter, str):
        facts = DRAFTERS[drafter]
        if draft is None and facts.uses_model and not facts.uses_ngrams:
            raise InputError(f"{drafter} needs a draft model", "drafter", "name one, or choose ngram")
        return
    if drafter is not None and not is_drafter(drafter) and not makes_drafters(drafter):
        raise InputError(f"must be one of {', '.join(DRAFTERS)}, or have begin and propose, not {drafter!r}", "drafter")


def choose_drafter(
    options: GenerationOptions,
    target: EncoderDecoder,
    make_model_drafter: Callable[[], BatchDrafter] | None = None,
    ngram: NgramDrafter | None = None,
) -> BatchDrafter:
    """Build the drafter that the options name. Raises `InputError`.

    Without a draft model, "auto" means "ngram". `build` in the drafter's module receives the n-gram drafter, the model
    drafter and the target's vocabulary size. A drafter that it does not use, according to `DRAFTERS`, is None.

    Args:
        options: The options of all requests. `drafter` must not be None.
        target: The target.
        make_model_drafter: Builds the drafter for the draft model or head (see `model_drafter`); None if there is
            neither.
        ngram: The n-gram drafter to use. By default, a new one is created.
    """
    choice = options.drafter
    check_drafter(choice, make_model_drafter)
    vocab_size = target.config.vocab_size
    if not isinstance(choice, str):
        from .separate import custom_drafter

        return custom_drafter(choice, vocab_size)
    facts = DRAFTERS[choice]
    model = make_model_drafter() if facts.uses_model and make_model_drafter is not None else None
    copies = None
    if facts.uses_texts:
        copies = ngram or NgramDrafter(pieces=target.pieces, max_ngram_size=options.max_ngram_size)
        if not facts.uses_ngrams:
            copies = copies.for_given_texts()
    drafter: BatchDrafter = import_module(f".{facts.module}", __name__).build(copies, model, vocab_size)
    return drafter


def checked_draft(
    draft: EncoderDecoder | DraftHead, target: EncoderDecoder, vocabulary: DraftVocabulary | None = None
) -> DraftModel | DraftHead:
    """Prepare a draft model or head for this target, limited to a vocabulary.

    Raises `InputError` if its tokens are not the target's.
    """
    if isinstance(draft, DraftHead):
        return draft if vocabulary is None else draft.with_frequent(vocabulary.ids)
    from ..models.shared_encoder import shared_part
    from .draft_model import DraftModel

    if (difference := token_difference(target, draft)) is not None:
        raise InputError(
            f"draft model: {difference}",
            way_out=Message("give its {draft_tokenizer} to draft its text, or choose another draft"),
        )
    return DraftModel(draft, vocabulary, shared_part(target, draft))


def model_drafter(draft_model: DraftModel | DraftHead, target: EncoderDecoder) -> BatchDrafter:
    """Build the drafter for a draft model or head with the target's tokens (see `checked_draft`)."""
    if isinstance(draft_model, DraftHead):
        from .head import BatchHeadDrafter

        return BatchHeadDrafter(draft_model, target)
    from .model import BatchModelDrafter

    return BatchModelDrafter(draft_model, target.config.vocab_size)
