"""The loop: a draft proposes, the target verifies in one pass, a rule decides. And the ways to call it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .acceptance import AcceptanceRule, choose_rule
from .drafters import Drafter, ModelDrafter, NoDrafter
from .errors import InputError
from .models.base import EncoderDecoder
from .models.cache import DecoderCache
from .sampling import SamplingParams
from .stats import GenerationStats, Round
from .tokenizer import StreamingDetokenizer, Tokenizer

SPLIT_EVERY = 8  # every eighth round waits for its draft as well, to learn what share of the time that takes


def speculate(
    model: EncoderDecoder,
    cache: DecoderCache,
    drafter: Drafter,
    rule: AcceptanceRule,
    sampling: SamplingParams,
    *,
    num_draft: int,
    max_tokens: int,
) -> Iterator[Round]:
    """Yield one Round per propose-verify-accept cycle. Token ids only, no text.

    `cache` is empty and `drafter` has begun. Ends exactly at an end-of-sequence token or at `max_tokens`.
    """
    tokens = [model.config.decoder_start_token_id]
    finish_reason = None
    for index in range(max_tokens):
        started = time.perf_counter()
        room = max_tokens - (len(tokens) - 1)
        draft = drafter.propose(tokens, min(num_draft, room - 1))
        draft_seconds = time_of_draft(draft.tokens, started) if index % SPLIT_EVERY == 0 else None

        logits = model.decode(draft.after(tokens[-1]), cache)  # (1, K + 1, V)
        verdict = rule.verdict(draft, logits, sampling, position=len(tokens))
        new, accepted = verdict.tokens(draft)  # the round's only wait for the device

        new, finish_reason = until_end(new, model.config.eos_token_ids, room)
        tokens += new
        cache.trim_to(len(tokens) - 1)  # it holds every committed token but the last
        seconds = time.perf_counter() - started
        yield Round(new, draft.num_tokens, min(accepted, len(new)), seconds, draft_seconds, finish_reason)
        if finish_reason:
            return


def until_end(new: list[int], eos_token_ids: Sequence[int], room: int) -> tuple[list[int], str | None]:
    """Cut behind the first end-of-sequence token, which stays; say why generation ends here, if it does."""
    for i, token in enumerate(new):
        if token in eos_token_ids:
            return new[: i + 1], "stop"
    return new, "length" if len(new) == room else None


def time_of_draft(tokens: mx.array, started: float) -> float:
    mx.eval(tokens)
    return time.perf_counter() - started


@dataclass(frozen=True)
class GenerationResponse:
    """One token of a stream. `text` is what it adds (empty while a character is incomplete); `stats` run along."""

    text: str
    token: int
    from_draft: bool
    finish_reason: str | None
    stats: GenerationStats


@dataclass(frozen=True)
class GenerationResult:
    """`tokens` as the target wrote them, the end-of-sequence token included; `text` without it."""

    text: str
    tokens: list[int]
    finish_reason: str
    stats: GenerationStats


def stream_generate(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    draft_model: EncoderDecoder | None = None,
    num_draft: int = 5,
    delta: float = 0.0,
    sampling: SamplingParams | None = None,
    max_tokens: int = 100,
    allow_long_prompt: bool = False,
) -> Iterator[GenerationResponse]:
    """Yield a response for each token as soon as it is accepted.

    draft_model: proposes `num_draft` tokens a round; None decodes regularly.
    delta: 0 changes nothing; up to 1 accepts more than the target would write (lossy).
    sampling: default temperature 0, the most likely token each time.
    allow_long_prompt: accept a prompt longer than the model was trained on.

    Arguments are checked here and now, before the first response is asked for. Raises `InputError` that names
    the argument. The cache belongs to this call: leaving the stream early leaves no trace in the next.
    """
    if num_draft < 0:
        raise InputError(f"num_draft must be >= 0, not {num_draft}")
    if max_tokens < 1:
        raise InputError(f"max_tokens must be >= 1, not {max_tokens}")
    sampling = sampling or SamplingParams()
    rule = choose_rule(sampling, delta)
    drafter = ModelDrafter(draft_model, model, sampling) if draft_model is not None and num_draft > 0 else NoDrafter()
    source = encode_prompt(model, tokenizer, prompt, allow_long_prompt)
    return _stream(model, tokenizer, source, drafter, rule, sampling, num_draft, max_tokens)


def _stream(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    source: list[int],
    drafter: Drafter,
    rule: AcceptanceRule,
    sampling: SamplingParams,
    num_draft: int,
    max_tokens: int,
) -> Iterator[GenerationResponse]:
    mx.reset_peak_memory()
    started = time.perf_counter()
    drafter.begin(source)
    cache = model.make_cache(model.encode(mx.array([source])))
    mx.eval([(layer.cross_keys, layer.cross_values) for layer in cache.layers])
    stats = GenerationStats(prompt_tokens=len(source), lossless=rule.lossless or isinstance(drafter, NoDrafter))
    stats.encode_seconds = time.perf_counter() - started

    detokenizer = StreamingDetokenizer(tokenizer)
    for event in speculate(model, cache, drafter, rule, sampling, num_draft=num_draft, max_tokens=max_tokens):
        stats.add_round(event)
        stats.peak_memory_bytes = mx.get_peak_memory()
        for i, token in enumerate(event.tokens):
            reason = event.finish_reason if i == len(event.tokens) - 1 else None
            text = detokenizer.add(token) + (detokenizer.finish() if reason else "")
            yield GenerationResponse(text, token, i < event.accepted, reason, stats)


def generate(model: EncoderDecoder, tokenizer: Tokenizer, prompt: str, **options: Any) -> GenerationResult:
    """All of `stream_generate` at once; takes the same options."""
    text, tokens, reason = "", [], None
    for response in stream_generate(model, tokenizer, prompt, **options):
        text += response.text
        tokens.append(response.token)
        reason, stats = response.finish_reason, response.stats
    assert reason is not None
    return GenerationResult(text, tokens, reason, stats)


def encode_prompt(model: EncoderDecoder, tokenizer: Tokenizer, prompt: str, allow_long: bool = False) -> list[int]:
    """Text -> the ids that the encoder reads. Raises `InputError` for an empty or too long prompt."""
    if not prompt.strip():
        raise InputError("prompt is empty; give it some text")
    source = tokenizer.encode(prompt)
    limit = model.config.max_source_tokens
    if limit is not None and len(source) > limit and not allow_long:
        raise InputError(
            f"prompt has {len(source)} tokens, but the model was trained on at most {limit}; "
            "shorten or split it, or allow long prompts"
        )
    return source
