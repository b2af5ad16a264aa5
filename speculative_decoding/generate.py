"""Functions that decode one or many prompts with a model and a tokenizer. Each call creates its own `Session`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from .decoding.results import GenerationResponse, GenerationResult, Round
from .drafters import DraftHead, NgramDrafter
from .loading.tokenizer import Tokenizer
from .models.base import EncoderDecoder
from .models.source import AudioFrames
from .sampling.options import shows_options
from .session import Prompt, Session

if TYPE_CHECKING:
    from .drafters.draft_model import DraftVocabulary
    from .rows.scheduling import BatchResult
    from .sampling.keywords import OptionKeywords

Draft = EncoderDecoder | DraftHead


@shows_options
def stream_generate(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: Prompt,
    *,
    on_round: Callable[[Round], None] | None = None,
    draft_model: Draft | None = None,
    ngram: NgramDrafter | None = None,
    draft_vocabulary: DraftVocabulary | None = None,
    draft_tokenizer: Tokenizer | None = None,
    **options: Unpack[OptionKeywords],
) -> Iterator[GenerationResponse]:
    """Yield a response for each token as soon as it is accepted. See `Session.stream`.

    Args:
        model: The target.
        tokenizer: The target's tokenizer.
        prompt: A string, or its source tokens.
        on_round: Called with each `Round`.
        draft_model: A smaller model, or a draft head of the target.
        ngram: The n-gram drafter, which may already have learned from earlier text.
        draft_vocabulary: The tokens that the draft may propose; None means all.
        draft_tokenizer: The draft model's tokenizer, needed if its vocabulary differs from the target's.
        options: See `GenerationOptions`.
    """
    session = Session(
        model,
        tokenizer,
        draft_model,
        ngram=ngram,
        draft_vocabulary=draft_vocabulary,
        draft_tokenizer=draft_tokenizer,
    )
    return session.stream(prompt, on_round=on_round, **options)


@shows_options
def generate(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: Prompt,
    *,
    on_round: Callable[[Round], None] | None = None,
    draft_model: Draft | None = None,
    ngram: NgramDrafter | None = None,
    draft_vocabulary: DraftVocabulary | None = None,
    draft_tokenizer: Tokenizer | None = None,
    **options: Unpack[OptionKeywords],
) -> GenerationResult:
    """Decode a prompt. See `Session.generate`; the arguments are the same as for `stream_generate`."""
    session = Session(
        model,
        tokenizer,
        draft_model,
        ngram=ngram,
        draft_vocabulary=draft_vocabulary,
        draft_tokenizer=draft_tokenizer,
    )
    return session.generate(prompt, on_round=on_round, **options)


@shows_options
def batch_generate(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompts: Iterable[str | AudioFrames | Mapping[str, Any]],
    *,
    slots: int | None = None,
    max_memory_gb: float | None = None,
    draft_model: Draft | None = None,
    ngram: NgramDrafter | None = None,
    draft_vocabulary: DraftVocabulary | None = None,
    draft_tokenizer: Tokenizer | None = None,
    **options: Unpack[OptionKeywords],
) -> Iterator[BatchResult[GenerationResult]]:
    """Yield the results of many prompts. See `Session.batch`, and `stream_generate` for the other arguments."""
    session = Session(
        model,
        tokenizer,
        draft_model,
        ngram=ngram,
        draft_vocabulary=draft_vocabulary,
        draft_tokenizer=draft_tokenizer,
    )
    return session.batch(prompts, slots=slots, max_memory_gb=max_memory_gb, **options)
