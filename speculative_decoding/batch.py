"""Many prompts at once: a fixed number of slots, which the next prompt takes when a row finishes (continuous batching,
Yu et al., "Orca", OSDI 2022, section 3). The rounds are those of `speculate`; nothing is decided here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import mlx.core as mx

from .decoding.acceptance import Coupled
from .decoding.loop import Row, read_prefix, speculate, strict_width
from .decoding.request import MAX_TOKENS, Request, choose_length, prepare
from .decoding.stats import GenerationStats, Round
from .draft_length.schedules import DraftLength
from .drafters import BatchDrafter, Drafter, DraftModel, NgramDrafter, choose_drafter
from .errors import InputError
from .generate import GenerationResult
from .loading.tokenizer import Tokenizer
from .models.base import EncoderDecoder
from .models.cache import DecoderCache
from .models.memory import slots_within
from .sampling import SamplingParams

WINDOW = 4  # times the slots: how many prompts are sorted by length at a time, so that little is padded
SAMPLING = frozenset(each.name for each in fields(SamplingParams))


@dataclass(frozen=True)
class BatchResult:
    """index: the prompt's position in the input, from 0. error: one line, instead of a result."""

    index: int
    result: GenerationResult | None
    error: str | None = None


def batch_generate(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompts: Iterable[str | Mapping[str, Any]],
    *,
    slots: int = 8,
    draft_model: EncoderDecoder | DraftModel | None = None,
    drafter: str | Drafter | None = None,
    ngram: NgramDrafter | None = None,
    num_draft: int | str | DraftLength = 5,
    max_memory_gb: float | None = None,
    **options: Any,
) -> Iterator[BatchResult]:
    """Yield the results as prompts finish. Each is what `generate` gives for that prompt alone: the same tokens at
    temperature 0 and with acceptance "coupled"; else the same law, and with drafts that do not learn from row to
    row (a model's, of fixed lengths) the same sample.

    prompts: each a text, or a mapping with "prompt" and options of its own: those of `prepare`, the fields of
        `SamplingParams` by their names, and num_draft. Consumed only a few times `slots` ahead.
    slots: how many rows are decoded together.
    draft_model, drafter, ngram, num_draft, options: as `stream_generate` takes them, for all prompts. A drafter must be
        given by name: each row needs its own.
    max_memory_gb: take fewer slots where their caches would not fit beside the weights (`slots_within`).

    Raises `InputError` for these; a prompt that is empty or too long, or has bad options, gets an error of its own.
    """
    if slots < 1:
        raise InputError(f"slots must be >= 1, not {slots}")
    if not (drafter is None or isinstance(drafter, str)):
        raise InputError(f"drafter must be given by name for several prompts, not {drafter!r}: each row needs its own")
    if max_memory_gb is not None:
        speaker = draft_model.model if isinstance(draft_model, DraftModel) else draft_model
        slots = slots_within(max_memory_gb, slots, model, speaker, options.get("max_tokens", MAX_TOKENS))
    choose_drafter(drafter, model, draft_model, ngram)  # raises if they do not fit
    length = choose_length(num_draft, model, draft_model, slots)
    options["length"] = length
    prepare(model, tokenizer, "x", **options)  # raises if the options are bad
    make = partial(choose_drafter, drafter, model, draft_model, ngram)
    return _batch(model, make, requests_of(model, tokenizer, prompts, options), slots)


def requests_of(
    model: EncoderDecoder, tokenizer: Tokenizer, prompts: Iterable[str | Mapping[str, Any]], options: Mapping[str, Any]
) -> Iterator[tuple[int, Request | str]]:
    """(position in the input, request or what is wrong with it)."""
    for index, prompt in enumerate(prompts):
        try:
            text, own = (prompt, options) if isinstance(prompt, str) else with_own_options(options, prompt, model)
            yield index, prepare(model, tokenizer, text, **own)
        except InputError as error:
            yield index, str(error)


def with_own_options(
    options: Mapping[str, Any], row: Mapping[str, Any], model: EncoderDecoder
) -> tuple[str, dict[str, Any]]:
    """The prompt, and the options as the row changes them. May raise `InputError`."""
    own = {name: value for name, value in row.items() if name != "prompt"}
    sampling = {name: own.pop(name) for name in SAMPLING & own.keys()}
    if "num_draft" in own:
        own["length"] = choose_length(own.pop("num_draft"), model)
    if options.get("strict") and (forbidden := own.keys() & {"strict", "max_tokens", "length", "prefix"}):
        raise InputError(f"strict passes have one shape for all rows: {', '.join(sorted(forbidden))} cannot differ")
    base = options.get("sampling") or SamplingParams()
    return row["prompt"], {**options, **own, "sampling": replace(base, **sampling)}


@dataclass
class Ready:
    """A request that waits for a slot, with the memory (1, S, d_model) and what the drafter read of it; then its output
    as it grows.
    """

    index: int
    request: Request
    memory: mx.array
    reading: Any
    stats: GenerationStats
    started: float
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, event: Round) -> None:
        stats, ending = self.stats, self.request.ending
        stats.add_round(event)
        stats.lossless = self.request.settings.rule.lossless or stats.drafted_tokens == 0
        stats.peak_memory_bytes = mx.get_peak_memory()
        if not self.tokens:
            stats.time_to_first_token = time.perf_counter() - self.started
        self.tokens += event.tokens
        self.logprobs += event.logprobs or []
        self.text += "".join(ending.next_text() for _ in event.tokens)

    def result(self) -> BatchResult:
        reason = self.request.row.finish_reason
        assert reason is not None
        text = self.text + self.request.ending.finish()
        logprobs = self.logprobs if self.request.settings.logprobs else None
        return BatchResult(self.index, GenerationResult(text, self.tokens, reason, self.stats, logprobs))


class Seats:
    """Who sits in which slot. rows: what the loop sees, changed in place."""

    def __init__(self, model: EncoderDecoder, drafter: BatchDrafter, slots: int) -> None:
        self.model, self.drafter = model, drafter
        self.rows: list[Row | None] = [None] * slots
        self.cache: DecoderCache | None = None
        self.width: int | None = None  # of strict passes
        self._seated: list[Ready | None] = [None] * slots
        self._sorted: deque[tuple[int, Request]] = deque()
        self._ready: deque[Ready] = deque()

    def fill(self, requests: Iterator[tuple[int, Request | str]]) -> Iterator[BatchResult]:
        """Give free slots to the next requests; yield errors of those that are none."""
        for slot, row in enumerate(self.rows):
            if row is not None and not row.finish_reason:
                continue
            while not (self._ready or self._sorted):
                found = list(islice(requests, WINDOW * len(self.rows)))
                if not found:
                    break
                yield from (BatchResult(index, None, each) for index, each in found if isinstance(each, str))
                good = [(index, each) for index, each in found if isinstance(each, Request)]
                self._sorted.extend(sorted(good, key=lambda pair: len(pair[1].source)))
            if not self._ready and self._sorted:
                self._read_next()
            self._seat(slot, self._ready.popleft() if self._ready else None)

    def close_ranks(self) -> None:
        """When half of the slots or more are free, for good, the others go on alone."""
        busy = [slot for slot, row in enumerate(self.rows) if row is not None]
        if self.cache is None or self.width is not None or not 0 < len(busy) <= len(self.rows) // 2:
            return
        self.cache.select(busy)
        self.drafter.select(busy)
        self.rows[:] = [self.rows[slot] for slot in busy]
        self._seated[:] = [self._seated[slot] for slot in busy]

    def _read_next(self) -> None:
        """Encode as many requests together as there are slots."""
        group = [self._sorted.popleft() for _ in range(min(len(self.rows), len(self._sorted)))]
        started = time.perf_counter()
        sources = [request.source for _, request in group]
        memories, readings = self.model.encode_rows(sources), self.drafter.read(sources)
        mx.eval(memories)
        seconds = (time.perf_counter() - started) / len(group)
        for (index, request), memory, reading in zip(group, memories, readings, strict=True):
            stats = GenerationStats(prompt_tokens=len(request.source), encode_seconds=seconds)
            self._ready.append(Ready(index, request, memory, reading, stats, started))

    def _seat(self, slot: int, ready: Ready | None) -> None:
        self._seated[slot], self.rows[slot] = ready, None
        if ready is None:
            return
        request, settings = ready.request, ready.request.settings
        self.rows[slot] = request.row
        settings.length.begin()
        self.cache = self.model.assign_slot(self.cache, slot, len(self.rows), ready.memory)
        if settings.strict and self.width is None:
            self.width = strict_width(self.cache, settings, request.row.given)
        read_prefix(self.model, self.cache, request.row, slot)
        coupled = isinstance(settings.rule, Coupled)
        self.drafter.begin(slot, request.source, ready.reading, settings.sampling, coupled=coupled)

    def add(self, slot: int, event: Round) -> BatchResult | None:
        """The row's result, if this was its last round."""
        ready = self._seated[slot]
        assert ready is not None
        ready.add(event)
        return ready.result() if event.finish_reason else None


def _batch(
    model: EncoderDecoder,
    make_drafter: Callable[[int], BatchDrafter],
    requests: Iterator[tuple[int, Request | str]],
    slots: int,
) -> Iterator[BatchResult]:
    mx.reset_peak_memory()
    first = list(islice(requests, slots))
    seats = Seats(model, make_drafter(max(1, len(first))), max(1, len(first)))
    requests = chain(first, requests)
    yield from seats.fill(requests)
    if seats.cache is None:
        return
    for rounds in speculate(model, seats.cache, seats.drafter, seats.rows, seats.width):
        for slot, event in rounds.items():
            if (result := seats.add(slot, event)) is not None:
                yield result
        yield from seats.fill(requests)
        seats.close_ranks()
