"""Requests in, tokens and texts out: slots that the next request takes when one ends (continuous batching, Yu et al.,
"Orca", OSDI 2022, section 3). Single prompts, streams, batches and jobs are its clients.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import mlx.core as mx

from .decoding.batch import Batch, DecodedRow, read_prefix
from .decoding.beam_round import follow_beams
from .decoding.ending import Ending
from .decoding.loop import speculate
from .decoding.request import not_finite, prepare
from .decoding.results import GenerationResponse, GenerationResult
from .decoding.stats import GenerationStats, Round
from .draft_length.base import DraftLength
from .draft_length.passes import UNPADDED, PassWidths
from .drafters import BatchDrafter, Draft
from .drafters.base import MODEL
from .errors import InputError
from .loading.tokenizer import Tokenizer
from .models.base import EncoderDecoder
from .sampling import GenerationOptions
from .sampling.random import sample_seed

QUEUE_PER_SLOT = 4  # requests that a client does well to submit ahead: they are sorted by length, so little is padded


@dataclass(eq=False)
class Request:
    """A prompt that was submitted, and its output as it grows.

    stats: one object that runs along. finish_reason: see `Round`; "cancelled" for a request that was. error: one line,
        where that is "error".
    started: when its encoding began.
    """

    row: DecodedRow
    ending: Ending
    stats: GenerationStats
    started: float = 0.0
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def error(self) -> str | None:
        return not_finite(len(self.tokens) + 1) if self.finish_reason == "error" else None

    def results(self) -> list[GenerationResult]:
        """When it has ended: one, or with beams as many as were asked for, the best first."""
        assert self.finish_reason is not None
        row, stats = self.row, self.stats
        if row.search is None:
            logprobs = self.logprobs if row.options.logprobs else None
            return [GenerationResult(self.text, self.tokens, self.finish_reason, stats, logprobs)]
        found = []
        for each in row.search.best(row.options.num_return_sequences):
            reason = row.reason_of_end(len(each.tokens)) if each.tokens[-1] in row.search.ends else "length"
            text = self.ending.text_of(each.tokens)
            found.append(GenerationResult(text, each.tokens, reason, stats, score=each.score))
        return found

    def add(self, event: Round) -> list[str]:
        """What came of a round; the text of each of its tokens."""
        stats = self.stats
        stats.add_round(event)
        stats.lossless = self.row.options.is_lossless or stats.drafted_tokens == 0
        stats.peak_memory_bytes = mx.get_peak_memory()
        if not self.tokens:
            stats.time_to_first_token = time.perf_counter() - self.started
        texts = [self.ending.next_text() for _ in event.tokens]
        self.finish_reason = event.finish_reason
        if event.finish_reason and texts:
            texts[-1] += self.ending.finish()
        self.tokens += event.tokens
        self.logprobs += event.logprobs or []
        self.text += "".join(texts)
        return texts


class Phases:
    """Times the draft and the verification of a round: the hook of `speculate`."""

    def __init__(self) -> None:
        self._started, self.seconds = time.perf_counter(), dict[str, float]()

    def __call__(self, draft: Draft) -> None:
        if not self.seconds:
            mx.eval(draft.tokens)
        name = "verify_seconds" if self.seconds else "draft_seconds"
        now = time.perf_counter()
        self.seconds[name], self._started = now - self._started, now


class Event(NamedTuple):
    """What one round brought one request. texts: of each token of the round; empty while a character is incomplete, or
    while text may belong to a stop string.
    """

    request: Request
    round: Round
    texts: list[str]


def responses(event: Event) -> Iterator[GenerationResponse]:
    """One for each token of a round."""
    round, last = event.round, len(event.texts) - 1
    for i, (token, text) in enumerate(zip(round.tokens, event.texts, strict=True)):
        logprob = None if round.logprobs is None else round.logprobs[i]
        reason = round.finish_reason if i == last else None
        stats = event.request.stats
        yield GenerationResponse(text, token, logprob, i < round.accepted, round.accepted, reason, stats)


def result_of(requests: Sequence[Request]) -> GenerationResult:
    """Of one request, or of all samples of a prompt."""
    first, found = requests[0], [result for request in requests for result in request.results()]
    if first.row.options.num_return_sequences == 1:
        return found[0]
    stats = GenerationStats()
    for request in requests:
        stats.add(request.stats)
    stats.prompt_tokens = first.stats.prompt_tokens
    return replace(found[0], stats=stats, sequences=tuple(found))


class Engine:
    """Decodes up to `slots` requests at a time, each as it would be decoded alone; with beams a slot has as many rows.

    `submit` only queues: it never waits for the device and never encodes. `step` encodes requests when a slot is free,
    as many together as there are slots, so never more than `slots` ahead of those that are free.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        drafter: BatchDrafter,
        *,
        slots: int,
        widths: PassWidths = UNPADDED,
        num_beams: int = 1,
    ) -> None:
        """widths: of the target's passes. num_beams: of all requests. drafter: serves this engine alone; with beams
        nothing is drafted.
        """
        self._model, self._tokenizer, self._drafter = model, tokenizer, drafter
        self._slots, self._widths, self._num_beams = slots, widths, num_beams
        self._queue: deque[Request] = deque()
        self._sorted: deque[Request] = deque()  # the part of the queue whose turn is next, the shortest first
        self._encoded: deque[tuple[Request, mx.array]] = deque()  # with the encoder output (1, S, d_model)
        self._requests: list[Request | None] = []  # by slot
        self._batch: Batch | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not any(self._requests)

    @property
    def wants_more(self) -> bool:
        """Whether submitting another request now would help; it is no limit."""
        return self.waiting < QUEUE_PER_SLOT * self._slots

    @property
    def waiting(self) -> int:
        """How many requests have no slot yet."""
        return len(self._queue) + len(self._sorted) + len(self._encoded)

    @property
    def decoding(self) -> int:
        """How many have one."""
        return len(self._requests) - self._requests.count(None)

    def submit_samples(self, prompt: str, options: GenerationOptions, length: DraftLength) -> list[Request]:
        """`submit`, one request for each sample of the prompt, which is encoded once."""
        requests = [self.submit(prompt, options, length)]
        for number in range(1, options.num_samples):
            own = replace(options, seed=sample_seed(options.seed, number))
            requests.append(self.submit(prompt, own, length))
            requests[-1].row.source = requests[0].row.source
        return requests

    def submit(self, prompt: str, options: GenerationOptions, length: DraftLength) -> Request:
        """Queue a prompt. length: how many tokens to draft; requests may share one, which then learns from them all.

        Raises `InputError` for a prompt or options that cannot be decoded.
        """
        if options.num_beams != self._num_beams:
            raise InputError(f"num_beams is {self._num_beams} for all requests of this engine, not {options.num_beams}")
        row, ending = prepare(self._model, self._tokenizer, prompt, options, length)
        stats = GenerationStats(prompt_tokens=len(row.source))
        request = Request(row, ending, stats)
        self._queue.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """Drop a request; its slot is free before the next round. Nothing happens to one that has ended."""
        if request.finish_reason is not None:
            return
        request.finish_reason = "cancelled"
        if request in self._requests:
            self._free(request.row.slot)
        for queue in (self._queue, self._sorted):
            if request in queue:
                queue.remove(request)
        self._encoded = deque(each for each in self._encoded if each[0] is not request)

    def step(self) -> list[Event]:
        """Give free slots to waiting requests, then do one round for all."""
        if self.waiting or None in self._requests:
            self._fill()
        batch = self._batch
        if batch is None or not batch.active:
            return []
        rounds = self._round(batch)
        events = []
        for slot, event in rounds.items():
            request = self._requests[slot]
            assert request is not None
            events.append(Event(request, event, request.add(event)))
            if request.finish_reason:
                self._free(slot)
        return events

    def _round(self, batch: Batch) -> dict[int, Round]:
        """With its time; where a row is `timed`, draft and verification apart, which takes a second wait."""
        phases = Phases() if any(row.options.timed for row in batch.active) else None
        rows, started = len(batch.rows), time.perf_counter()
        rounds = follow_beams(batch) if self._num_beams > 1 else speculate(batch, phases)
        seconds = time.perf_counter() - started
        drafted = max(each.drafted for each in rounds.values())
        steps = max(each.drafted * (each.kind == MODEL) for each in rounds.values())
        self._widths.observe(rows, drafted, steps, seconds)
        times: dict[str, Any] = {"seconds": seconds, **(phases.seconds if phases else {})}
        return {slot: replace(each, **times) for slot, each in rounds.items()}

    def _free(self, slot: int) -> None:
        assert self._batch is not None
        self._requests[slot] = self._batch.rows[slot] = None

    def _fill(self) -> None:
        self._resize(min(self._slots, self.decoding + self.waiting))
        free = [slot for slot, request in enumerate(self._requests) if request is None][: self.waiting]
        for slot in free:
            if not self._encoded:
                self._encode()
            self._assign(slot, *self._encoded.popleft())
        if free and self._batch is not None:  # no part of the next round, by whose time lengths are chosen
            mx.eval(self._batch.cache.arrays)

    def _encode(self) -> None:
        """The next requests, as many together as there are slots."""
        if not self._sorted:
            count = min(len(self._queue), QUEUE_PER_SLOT * self._slots)
            self._sorted.extend(
                sorted((self._queue.popleft() for _ in range(count)), key=lambda request: len(request.row.source))
            )
        group: dict[int, Request] = {}  # by their sources, of which samples share one
        for request in islice(self._sorted, len(self._requests)):
            group.setdefault(id(request.row.source), request)
        started = time.perf_counter()
        encoder_outputs = self._encoded_rows([*group.values()])
        seconds, of_source = (
            (time.perf_counter() - started) / len(group),
            dict(zip(group, encoder_outputs, strict=True)),
        )
        for queue in (self._sorted, self._queue):
            found = [request for request in queue if id(request.row.source) in group]
            for request in found:
                queue.remove(request)
                source = id(request.row.source)
                request.started = started
                request.stats.encode_seconds = seconds if group[source] is request else 0.0
                self._encoded.append((request, of_source[source]))

    def _encoded_rows(self, group: Sequence[Request]) -> list[mx.array]:
        encoder_outputs = self._model.encode_rows([request.row.source for request in group])
        if len(group) > 1:  # padded: padding need not be finite, and a mask hides only what is
            finite = mx.stack([mx.isfinite(encoder_output).all() for encoder_output in encoder_outputs]).all()
            mx.eval(encoder_outputs, finite)
            if not finite.item():
                encoder_outputs = [self._model.encode_rows([request.row.source])[0] for request in group]
        mx.eval(encoder_outputs)
        return encoder_outputs

    def _assign(self, slot: int, request: Request, encoder_output: mx.array) -> None:
        row, batch = request.row, self._batch
        row.slot = slot
        self._requests[slot] = request
        cache, slots = None if batch is None else batch.cache, len(self._requests)
        cache = self._model.assign_slot(cache, slot, slots, encoder_output, self._num_beams)
        if batch is None:
            self._batch = batch = Batch(self._model, self._drafter, cache, [None] * slots, self._widths)
        batch.rows[slot] = row
        if self._widths.fixed_capacity:
            cache.reserve(row.given + row.options.max_tokens + self._widths.max_width(slots))
        read_prefix(batch, row)
        row.length.begin()
        row.encoder_output = encoder_output
        self._drafter.begin(row)
        row.encoder_output = None  # whoever needs it has taken it

    def _resize(self, wanted: int) -> None:
        """As many rows as are needed, give or take a factor of two: a pass computes all of them."""
        rows = len(self._requests)
        if self._batch is None:
            self._requests = [None] * wanted
            return
        if wanted > rows:
            size = min(self._slots, max(wanted, 2 * rows))
        elif 0 < wanted <= rows // 2:
            size = wanted
        else:
            return
        kept = [slot for slot, request in enumerate(self._requests) if request is not None]
        order = (kept + [slot for slot in range(rows) if slot not in kept] + [0] * size)[:size]
        self._batch.cache.select(order)
        self._drafter.select(order)
        self._requests = [self._requests[slot] if i < len(kept) else None for i, slot in enumerate(order)]
        for slot, request in enumerate(self._requests):
            if request is not None:
                request.row.slot = slot
        self._batch.rows = [None if each is None else each.row for each in self._requests]
