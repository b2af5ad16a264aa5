"""The loop: a draft proposes, the target verifies in one pass, a rule decides. And the ways to call it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from .acceptance import AcceptanceRule, Coupled, Greedy, choose_rule
from .drafters import Drafter, ModelDrafter, NoDrafter
from .ending import Ending
from .errors import InputError
from .models.base import EncoderDecoder
from .models.cache import DecoderCache
from .sampling import SamplingParams
from .stats import GenerationStats, Round
from .tokenizer import Tokenizer

SPLIT_EVERY = 8  # every eighth round waits for its draft as well, to learn what share of the time that takes

STRICT_TILE = 8  # rows


@dataclass(frozen=True)
class Settings:
    """How a request is decoded, whatever its models and prompt. See `stream_generate` for the fields.

    Raises `InputError` that names the field.
    """

    num_draft: int = 5
    max_tokens: int = 100
    sampling: SamplingParams = field(default_factory=SamplingParams)
    rule: AcceptanceRule = field(default_factory=Greedy)
    strict: bool = False

    def __post_init__(self) -> None:
        if self.num_draft < 0:
            raise InputError(f"num_draft must be >= 0, not {self.num_draft}")
        if self.max_tokens < 1:
            raise InputError(f"max_tokens must be >= 1, not {self.max_tokens}")


def speculate(
    model: EncoderDecoder,
    cache: DecoderCache,
    drafter: Drafter,
    settings: Settings,
    ends: Callable[[int], bool],
) -> Iterator[Round]:
    """Yield one Round per propose-verify-accept cycle. Token ids only, no text.

    `cache` is empty and `drafter` has begun. `ends` is shown every new token and says whether it is the last; the
    `max_tokens`-th is the last in any case.
    """
    rule, sampling, max_tokens = settings.rule, settings.sampling, settings.max_tokens
    width = strict_width(cache, settings) if settings.strict else None
    tokens = [model.config.decoder_start_token_id]
    finish_reason = None
    for index in range(max_tokens):
        started = time.perf_counter()
        room = max_tokens - (len(tokens) - 1)
        draft = drafter.propose(tokens, min(settings.num_draft, room - 1))
        draft_seconds = time_of_draft(draft.tokens, started) if index % SPLIT_EVERY == 0 else None

        logits = verify_pass(model, draft.after(tokens[-1]), cache, width)  # (1, K + 1, V)
        verdict = rule.verdict(draft, logits, sampling, tokens)
        new, accepted, prices = verdict.read(draft)  # the round's only wait for the device

        new, finish_reason = until_end(new, ends, room)
        tokens += new
        cache.trim_to(len(tokens) - 1)  # it holds every committed token but the last
        seconds, price = time.perf_counter() - started, sum(prices[: len(new)])
        yield Round(new, draft.num_tokens, min(accepted, len(new)), seconds, draft_seconds, finish_reason, price)
        if finish_reason:
            return


def verify_pass(model: EncoderDecoder, tokens: mx.array, cache: DecoderCache, width: int | None) -> mx.array:
    """(1, L) -> raw logits (1, L, V); computed `width` wide, if given, on padding that the next rewind forgets."""
    count = tokens.shape[1]
    if width is not None and count < width:
        padding = mx.full((1, width - count), model.config.pad_token_id, tokens.dtype)
        tokens = mx.concatenate([tokens, padding], axis=1)
    return model.decode(tokens, cache)[:, :count]


def strict_width(cache: DecoderCache, settings: Settings) -> int:
    """Strict mode: all passes have one shape, in queries and in keys, so that no kernel and no order of additions can
    differ between decoding with and without a draft. Fixes the cache's size, returns the width of a pass.

    Whole tiles only: matrix kernels add up the rows of a tile that is cut short in another order, and then a
    token's bits would depend on where in the pass it stands (docs/LOG.md, "Strict mode").
    """
    width = -(-(settings.num_draft + 1) // STRICT_TILE) * STRICT_TILE
    cache.fix_size(settings.max_tokens + width)
    return width


def until_end(new: list[int], ends: Callable[[int], bool], room: int) -> tuple[list[int], str | None]:
    """Cut behind the first token that ends the output, which stays; say why generation ends here, if it does."""
    for i, token in enumerate(new):
        if ends(token):
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
    """`tokens` as the target wrote them, up to and including the one that ended it: an end-of-sequence token, or the
    one that completed a stop string. `text` ends in front of the stop string.
    """

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
    acceptance: str = "rejection",
    delta: float = 0.0,
    skip_sample_adjustment: bool = False,
    sampling: SamplingParams | None = None,
    max_tokens: int = 100,
    stop: Sequence[str] = (),
    eos_token_ids: Sequence[int] = (),
    strict: bool = False,
    allow_long_prompt: bool = False,
) -> Iterator[GenerationResponse]:
    """Yield a response for each token as soon as it is accepted.

    draft_model: proposes `num_draft` tokens a round; None decodes regularly.
    acceptance: at a temperature above 0, "rejection" (the original rule), "block" (keeps a little more), or "coupled"
        (a seed gives the same text with any draft, any num_draft, or none). All three keep the target's law.
    delta: 0 changes nothing; up to 1 accepts more than the target would write (lossy; its price is in the statistics).
    skip_sample_adjustment: draw corrections from the target, not from what the draft left of it (lossy).
    sampling: default temperature 0, the most likely token each time.
    stop: the text ends in front of the first of these strings. A response never holds text that belongs to one, so
        text that may be the beginning of one comes later.
    eos_token_ids: ids that end the output besides the model's own.
    strict: compute every pass of the target in one shape that `num_draft` and `max_tokens` decide, so that also in 16
        bits the same settings with and without a draft give the same tokens. Slower.
    allow_long_prompt: accept a prompt longer than the model was trained on.

    Arguments are checked here and now, before the first response is asked for. Raises `InputError` that names
    the argument. The cache belongs to this call: leaving the stream early leaves no trace in the next.
    """
    sampling = sampling or SamplingParams()
    rule = choose_rule(sampling, acceptance, delta, skip_sample_adjustment)
    settings = Settings(num_draft, max_tokens, sampling, rule, strict)
    check_token_ids(eos_token_ids, model.config.vocab_size)
    ending = Ending(tokenizer, {*model.config.eos_token_ids, *eos_token_ids}, stop)
    drafter: Drafter = NoDrafter()
    if draft_model is not None and num_draft > 0:
        drafter = ModelDrafter(draft_model, model, sampling, coupled=isinstance(rule, Coupled))
    source = encode_prompt(model, tokenizer, prompt, allow_long_prompt)
    return _stream(model, source, drafter, settings, ending)


def _stream(
    model: EncoderDecoder, source: list[int], drafter: Drafter, settings: Settings, ending: Ending
) -> Iterator[GenerationResponse]:
    mx.reset_peak_memory()
    started = time.perf_counter()
    drafter.begin(source)
    cache = model.make_cache(model.encode(mx.array([source])))
    mx.eval([(layer.cross_keys, layer.cross_values) for layer in cache.layers])
    stats = GenerationStats(
        prompt_tokens=len(source), lossless=settings.rule.lossless or isinstance(drafter, NoDrafter)
    )
    stats.encode_seconds = time.perf_counter() - started

    for event in speculate(model, cache, drafter, settings, ends=ending):
        stats.add_round(event)
        stats.peak_memory_bytes = mx.get_peak_memory()
        for i, token in enumerate(event.tokens):
            reason = event.finish_reason if i == len(event.tokens) - 1 else None
            text = ending.next_text() + (ending.finish() if reason else "")
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


def check_token_ids(ids: Sequence[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InputError(f"eos_token_ids must be between 0 and {vocab_size - 1}, not {token}")
