"""Drafters: where proposed tokens come from. `sampling.drafters` lists them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..models.base import EncoderDecoder
from ..models.draft_head import DraftHead
from ..sampling import GenerationOptions
from ..sampling.drafters import DRAFTERS
from .base import BatchDrafter, Draft, Drafter, RequestView
from .ngram import NgramDrafter

if TYPE_CHECKING:
    from .auto import AutoDrafter
    from .draft_model import DraftModel
    from .head import BatchHeadDrafter
    from .model import BatchModelDrafter
    from .none import NoDrafter
    from .separate import SeparateDrafters
    from .text_store import TextStore

LAZY = {  # imported when they are used
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
    "choose_drafter",
    "model_drafter",
    "with_default_drafter",
]


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(import_module(f".{LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    if isinstance(drafter, str):
        facts = DRAFTERS[drafter]
        if draft is None and facts.uses_model and not facts.uses_ngrams:
            raise InputError(f"{drafter} needs a draft model", "drafter", "name one, or choose ngram")
        return
    is_custom = drafter is not None and not isinstance(drafter, BatchDrafter)
    if is_custom and not all(callable(getattr(drafter, name, None)) for name in ("begin", "propose")):
        raise InputError(f"must be one of {', '.join(DRAFTERS)}, or have begin and propose, not {drafter!r}", "drafter")


def choose_drafter(
    options: GenerationOptions,
    target: EncoderDecoder,
    make_model_drafter: Callable[[], BatchDrafter] | None = None,
    ngram: NgramDrafter | None = None,
) -> BatchDrafter:
    """Build the drafter of `with_default_drafter`; without a draft model, "auto" is "ngram". Raises `InputError`.

    The function `build` of the drafter's module receives what `DRAFTERS` says that it uses, or None, and the target's
    number of tokens.

    Args:
        options: The options of all requests.
        target: The target.
        make_model_drafter: Builds the drafter of the draft model or head, if there is one: a `model_drafter`.
        ngram: Drafts copies; a new one by default.
    """
    choice = with_default_drafter(options, make_model_drafter).drafter
    check_drafter(choice, make_model_drafter)
    vocab_size = target.config.vocab_size
    if not isinstance(choice, str):
        from .separate import custom_drafter

        return custom_drafter(choice, vocab_size)
    facts = DRAFTERS[choice]
    model = make_model_drafter() if facts.uses_model and make_model_drafter is not None else None
    copies = None
    if facts.uses_ngrams:
        copies = ngram or NgramDrafter(pieces=target.pieces, max_ngram_size=options.max_ngram_size)
    drafter: BatchDrafter = import_module(f".{facts.module}", __name__).build(copies, model, vocab_size)
    return drafter


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
        from .head import BatchHeadDrafter

        return BatchHeadDrafter(draft_model, target)
    from .model import BatchModelDrafter

    return BatchModelDrafter(draft_model, target.config.vocab_size, shares_encoder=shares_encoder)
