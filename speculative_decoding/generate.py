"""The same as functions of a model and a tokenizer: one prompt as a stream or at once, or many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .decoding.results import BatchResult, GenerationResponse, GenerationResult
from .drafters import DraftHead, DraftModel, NgramDrafter
from .loading.tokenizer import Tokenizer
from .models.base import EncoderDecoder
from .sampling.keywords import takes_keywords_of
from .session import BatchKeywords, Session, StreamKeywords


@dataclass(frozen=True, kw_only=True)
class Keywords(StreamKeywords):
    """draft_model: a smaller model of the same family. ngram: what drafts of copied text look up, and have learned."""

    draft_model: EncoderDecoder | DraftModel | DraftHead | None = None
    ngram: NgramDrafter | None = None


@dataclass(frozen=True, kw_only=True)
class ManyKeywords(BatchKeywords):
    """See `Keywords`."""

    draft_model: EncoderDecoder | DraftModel | DraftHead | None = None
    ngram: NgramDrafter | None = None


@takes_keywords_of(Keywords)
def stream_generate(
    model: EncoderDecoder, tokenizer: Tokenizer, prompt: str, given: Mapping[str, Any]
) -> Iterator[GenerationResponse]:
    """Yield a response for each token as soon as it is accepted: `Session.stream`.

    The keywords: see `GenerationOptions`; draft_model: a smaller model of the same family; ngram: what drafts of copied
    text look up; on_round: is called with every `Round`.
    """
    session, own = session_of(model, tokenizer, given)
    return session.stream(prompt, **own)


@takes_keywords_of(Keywords)
def generate(model: EncoderDecoder, tokenizer: Tokenizer, prompt: str, given: Mapping[str, Any]) -> GenerationResult:
    """All of `stream_generate` at once; takes the same keywords."""
    session, own = session_of(model, tokenizer, given)
    return session.generate(prompt, **own)


@takes_keywords_of(ManyKeywords)
def batch_generate(
    model: EncoderDecoder, tokenizer: Tokenizer, prompts: Iterable[str | Mapping[str, Any]], given: Mapping[str, Any]
) -> Iterator[BatchResult]:
    """Yield the results of many prompts as they finish: `Session.batch`.

    The keywords: see `GenerationOptions`; slots: how many prompts are decoded together; max_memory_gb: take fewer slots
    rather than more memory; draft_model, ngram: as `stream_generate` takes them.
    """
    session, own = session_of(model, tokenizer, given)
    return session.batch(prompts, **own)


def session_of(model: EncoderDecoder, tokenizer: Tokenizer, given: Mapping[str, Any]) -> tuple[Session, dict[str, Any]]:
    """A session for one call, and the keywords that are left for it."""
    own = dict(given)
    draft_model, ngram = own.pop("draft_model", None), own.pop("ngram", None)
    return Session(model, tokenizer, draft_model, ngram=ngram), own
