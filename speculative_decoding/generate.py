"""The ways to call the loop for one prompt: a stream of tokens and text, or all of it at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .decoding.acceptance import Coupled
from .decoding.loop import read_prefix, speculate, strict_width
from .decoding.request import Request, choose_length, prepare
from .decoding.stats import GenerationStats, Round
from .draft_length.schedules import DraftLength
from .drafters import BatchDrafter, Drafter, DraftModel, NgramDrafter, choose_drafter
from .loading.tokenizer import Tokenizer
from .models.base import EncoderDecoder


@dataclass(frozen=True)
class GenerationResponse:
    """One token of a stream.

    text: what it adds; empty while a character is incomplete, or while it may belong to a stop string.
    logprob: its log-probability under the target, at temperature 1; None unless `logprobs=True` was given.
    from_draft: whether it was drafted. accepted: how many drafted tokens its round accepted.
    finish_reason: of the last token, see `Round`.
    stats: so far; one object that runs along.
    """

    text: str
    token: int
    logprob: float | None
    from_draft: bool
    accepted: int
    finish_reason: str | None
    stats: GenerationStats


@dataclass(frozen=True)
class GenerationResult:
    """`tokens` as the target wrote them, up to and including the one that ended it: an end-of-sequence token, or the
    one that completed a stop string. `text` ends in front of the stop string. `logprobs`: one for each of the tokens,
    None unless `logprobs=True` was given.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    stats: GenerationStats
    logprobs: list[float] | None = None


def stream_generate(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    draft_model: EncoderDecoder | DraftModel | None = None,
    drafter: str | Drafter | BatchDrafter | None = None,
    ngram: NgramDrafter | None = None,
    num_draft: int | str | DraftLength = 5,
    on_round: Callable[[Round], None] | None = None,
    **options: Any,
) -> Iterator[GenerationResponse]:
    """Yield a response for each token as soon as it is accepted.

    draft_model: a smaller model of the same family.
    drafter: where drafts come from: "model", "ngram" (the text itself: input, output, a store), "auto" (a long match
        is copied, otherwise the draft model speaks), "none", or an object with `begin` and `propose`. By default the
        draft model if there is one, and regular decoding if not.
    ngram: what "ngram" and "auto" are to search and how, with the store that lives across requests.
    num_draft: tokens drafted per round: a number; "auto", which measures what they cost and gain;
        "heuristic" or "heuristic_transient", as transformers has them; or a `DraftLength`, which learns across
        the requests that share it.
    on_round: is called with every `Round`, before its tokens are given out.
    options: those of `prepare`: sampling, max_tokens, stop, acceptance, delta and so on.

    Arguments are checked here and now, before the first response is asked for. Raises `InputError` that names
    the argument. The cache belongs to this call: leaving the stream early leaves no trace in the next.
    """
    source = choose_drafter(drafter, model, draft_model, ngram)
    request = prepare(model, tokenizer, prompt, length=choose_length(num_draft, model, draft_model), **options)
    return _stream(model, source, request, on_round)


def _stream(
    model: EncoderDecoder, drafter: BatchDrafter, request: Request, on_round: Callable[[Round], None] | None
) -> Iterator[GenerationResponse]:
    mx.reset_peak_memory()
    started = time.perf_counter()
    settings = request.settings
    settings.length.begin()
    (reading,) = drafter.read([request.source])
    drafter.begin(0, request.source, reading, settings.sampling, coupled=isinstance(settings.rule, Coupled))
    cache = model.make_cache(model.encode(mx.array([request.source])))
    mx.eval(cache.arrays)
    stats = GenerationStats(prompt_tokens=len(request.source))
    stats.encode_seconds = time.perf_counter() - started

    width = strict_width(cache, settings, request.row.given) if settings.strict else None
    read_prefix(model, cache, request.row)
    for rounds in speculate(model, cache, drafter, [request.row], width):
        event = rounds[0]
        stats.add_round(event)
        stats.lossless = settings.rule.lossless or stats.drafted_tokens == 0
        stats.peak_memory_bytes = mx.get_peak_memory()
        if on_round is not None:
            on_round(event)
        for i, token in enumerate(event.tokens):
            reason = event.finish_reason if i == len(event.tokens) - 1 else None
            text = request.ending.next_text() + (request.ending.finish() if reason else "")
            logprob = None if event.logprobs is None else event.logprobs[i]
            yield GenerationResponse(text, token, logprob, i < event.accepted, event.accepted, reason, stats)


def generate(model: EncoderDecoder, tokenizer: Tokenizer, prompt: str, **options: Any) -> GenerationResult:
    """All of `stream_generate` at once; takes the same options."""
    responses = list(stream_generate(model, tokenizer, prompt, **options))
    last = responses[-1]
    assert last.finish_reason is not None
    logprobs = [response.logprob for response in responses if response.logprob is not None]
    return GenerationResult(
        "".join(response.text for response in responses),
        [response.token for response in responses],
        last.finish_reason,
        last.stats,
        logprobs if options.get("logprobs") else None,
    )
