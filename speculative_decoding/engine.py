"""Decodes many requests together, with the same results as if each were the only one.

A waiting request takes a slot of the batch as soon as one is free (continuous batching: Yu et al., "Orca", OSDI 2022,
section 3). Single prompts, streams, batches and jobs all use this engine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx

from .decoding.prompt import DecoderPrompt, EncodeDraft, draft_text_of, make_request
from .decoding.request import Request
from .decoding.results import GenerationResponse, GenerationResult, GenerationStats, Round
from .decoding.round import Batch, speculate
from .draft_length.base import DraftLength
from .draft_length.passes import UNPADDED, PassWidths
from .drafters import BatchDrafter
from .drafters.base import MODEL
from .errors import InputError
from .loading.tokenizer import Tokenizer
from .models.backend import computing
from .models.base import EncoderDecoder
from .models.cache import DecoderCache, capacity_for, source_capacity_for
from .models.device import on_gpu
from .models.memory_budget import require_reservable
from .models.source import Source
from .models.threads import turn, use_mlx
from .sampling import GenerationOptions
from .sampling.random import sample_seed

if TYPE_CHECKING:
    from .drafters.draft_text import DraftText

DEFAULT_SLOTS = 8  # maximum number of requests in a batch, unless the user sets it
QUEUE_PER_SLOT = 8  # recommended queue depth; queued requests are sorted by length, which reduces padding

# Returns additional texts that a request's output may resemble
FindDrafts = Callable[[Request], Sequence["DraftText"]]
# Runs one round for all requests of a batch, like `speculate`. It calls its second argument after drafting and again
# after verification.
Strategy = Callable[[Batch, Callable[[], None] | None], dict[Request, Round]]


class Event(NamedTuple):
    """The result of one round for one request.

    texts: the text released by each token of the round; "" while a character or a stop string may be incomplete.
    """

    request: Request
    round: Round
    texts: list[str]

    @property
    def is_last(self) -> bool:
        """Whether the request has ended."""
        return self.round.finish_reason is not None


def responses(event: Event) -> Iterator[GenerationResponse]:
    """Yield one response for each token of a round."""
    round = event.round
    last = len(event.texts) - 1
    for i, (token, text) in enumerate(zip(round.tokens, event.texts, strict=True)):
        yield GenerationResponse(
            text=text,
            token=token,
            logprob=None if round.logprobs is None else round.logprobs[i],
            from_draft=i < round.accepted,
            accepted=round.accepted,
            finish_reason=round.finish_reason if i == last else None,
            stats=event.request.stats,
        )


def result_of(requests: Sequence[Request]) -> GenerationResult:
    """The result of one request, or of all samples of a prompt."""
    first = requests[0]
    found = [result for request in requests for result in request.results()]
    if first.options.num_return_sequences == 1:
        return found[0]
    stats = GenerationStats()
    for request in requests:
        stats.add(request.stats)
    stats.prompt_tokens = first.stats.prompt_tokens
    return replace(found[0], stats=stats, sequences=tuple(found))


class Engine:
    """Decodes up to `slots` requests at a time. With beam search, each slot has `num_beams` rows.

    `submit` only queues a request. `step` encodes waiting requests when a slot is free, at most one for each slot, and
    then runs a round. Therefore, no more than `slots` encoded requests wait for a slot.

    Args:
        model: The target.
        tokenizer: The target's tokenizer.
        drafter: The drafter, which no other engine may use. Beam search does not use it.
        slots: The maximum number of requests in a batch.
        widths: The widths that the target's passes may have.
        num_beams: The number of beams for every request.
        encode_draft: Returns the `DraftText` of a text (default: `draft_text_of`).
        find_drafts: Returns additional texts that a request's output may resemble, such as entries of a translation
            memory. It is called while the request is encoded.
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
        encode_draft: EncodeDraft | None = None,
        find_drafts: FindDrafts | None = None,
    ) -> None:
        use_mlx()
        self._model = model
        self._tokenizer = tokenizer
        self._drafter = drafter
        self._slots = slots
        self._widths = widths
        self._num_beams = num_beams
        self._run_round: Strategy = speculate
        if num_beams > 1:
            from .beam_search.round import beam_search_step

            self._run_round = beam_search_step
        self._overlap = on_gpu() and model.ranks == 1  # with several ranks, the tokens are needed on the host
        self._encode_draft = encode_draft or partial(draft_text_of, model, tokenizer)
        self._find_drafts = find_drafts
        self._queue: deque[Request] = deque()
        self._sorted: deque[Request] = deque()  # taken from the queue, shortest first
        self._encoded: deque[tuple[Request, mx.array]] = deque()  # requests with their encoder outputs (1, S, d_model)
        self._requests: list[Request | None] = []  # by slot; the same list as the batch's `slots`
        self._batch: Batch | None = None
        self._seen_shapes: set[tuple[object, ...]] = set()  # of rounds
        self._capacity_class = (0, 0)  # of the batch's requests; see `PassWidths.capacity_class`

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not any(self._requests)

    @property
    def wants_more(self) -> bool:
        """Whether the queue is shorter than recommended. `submit` also accepts requests beyond that depth."""
        return self.waiting < QUEUE_PER_SLOT * self._slots

    @property
    def waiting(self) -> int:
        """The number of requests without a slot."""
        return len(self._queue) + len(self._sorted) + len(self._encoded)

    @property
    def decoding(self) -> int:
        """The number of requests with a slot."""
        return len(self._requests) - self._requests.count(None)

    def submit_samples(
        self, prompt: str | Source, options: GenerationOptions, draft_length: DraftLength
    ) -> list[Request]:
        """Queue a request for each sample of the prompt, which is encoded once. See `submit`."""
        requests = [self.submit(prompt, options, draft_length)]
        for number in range(1, options.num_samples):
            own = options.with_values(seed=sample_seed(options.seed, number))
            requests.append(self.submit(requests[0].source, own, draft_length))
        return requests

    def submit(
        self,
        prompt: str | Source,
        options: GenerationOptions,
        draft_length: DraftLength,
        start: DecoderPrompt | None = None,
    ) -> Request:
        """Queue a prompt, without waiting for the device.

        Args:
            prompt: The text or its source tokens or, for a speech model, audio frames.
            options: The options, with the same `num_beams` as this engine.
            draft_length: The draft-length policy. Requests may share a policy, which then learns from all of them.
            start: How the output begins and ends, and the request's options; None derives them from `options`.

        Raises:
            InputError: The prompt or the options cannot be used.
        """
        if options.num_beams != self._num_beams:
            raise InputError(
                f"is {self._num_beams} for all requests of this engine, not {options.num_beams}", "num_beams"
            )
        request = make_request(self._model, self._tokenizer, prompt, options, draft_length, start, self._encode_draft)
        if self._widths.capacity_borders:
            require_reservable(self._model, self._slots, options.max_tokens, self._num_beams)
        self._queue.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """Drop a request and free its slot. A finished request does not change."""
        if request.finish_reason is not None:
            return
        request.finish_reason = "cancelled"
        if request in self._requests:
            self._requests[request.slot] = None
        for queue in (self._queue, self._sorted):
            if request in queue:
                queue.remove(request)
        self._encoded = deque(each for each in self._encoded if each[0] is not request)

    @turn()
    @computing()
    def step(self) -> list[Event]:
        """Give free slots to waiting requests, then run one round for all requests that have a slot."""
        if self._widths.refine is not None and not self.waiting:
            decoding = [request for request in self._requests if request is not None]
            if decoding and all(request.stats.generated_tokens for request in decoding):  # never delays a first token
                self._widths.refine(len(self._requests))
        if self.waiting or None in self._requests:
            self._fill()
        batch = self._batch
        if batch is None or not batch.requests:
            return []

        self._widths.costs(len(batch.slots))  # measures the device if necessary, before the round is timed
        batch.num_waiting = self.waiting
        is_usual = self._is_usual(batch)
        rounds = self._round(batch)
        if self._widths.observe is not None and is_usual:
            self._observe(batch, list(rounds.values()))
        events = []
        for request, round in rounds.items():
            self._count(request, round)
            if request.finish_reason is not None:
                self._drafter.end(request)  # adds the complete output to a text store
                self._requests[request.slot] = None
            events.append(Event(request, round, request.new_texts if round.tokens else []))
        return events

    def _round(self, batch: Batch) -> dict[Request, Round]:
        """Run a round and time it. If a request is `timed`, also time the phases of the round."""
        phase_ends: list[float] = []  # the times at which drafting and verification ended
        is_timed = any(request.options.timed for request in batch.requests)
        started = time.perf_counter()
        rounds = self._run_round(batch, (lambda: phase_ends.append(time.perf_counter())) if is_timed else None)
        seconds = time.perf_counter() - started
        for round in rounds.values():
            round.seconds = seconds
            if phase_ends:
                drafted_at, verified_at = phase_ends
                round.draft_seconds = drafted_at - started
                round.verify_seconds = verified_at - drafted_at
        return rounds

    def _is_usual(self, batch: Batch) -> bool:
        """Whether nothing but its shape and other programs affects the time of the next round."""
        return (
            batch.started_pass is None  # otherwise, a part of it has been computed
            and not batch.has_retry
            and all(request.stats.generated_tokens and not request.options.timed for request in batch.requests)
        )

    def _observe(self, batch: Batch, rounds: Sequence[Round]) -> None:
        """Let the calibration learn from a round. The first round of each shape is left out, because MLX traces it."""
        assert self._widths.observe is not None
        rows, cache = len(batch.slots), batch.cache
        longest = max(round.drafted for round in rounds)
        steps = max(round.drafted if round.kind == MODEL else 0 for round in rounds)
        capacities = [layer.keys_values.shape for layer in cache.layers[:1]]
        shape = rows, longest, steps, *capacities, cache.source_capacity, cache.recorded_layers
        if shape in self._seen_shapes:
            width = batch.widths.padded_width(rows, 1 + longest)
            self._widths.observe(rows, width, steps, rounds[0].seconds)
        self._seen_shapes.add(shape)

    def _count(self, request: Request, round: Round) -> None:
        """Add a round to the request's statistics."""
        stats = request.stats
        if not stats.generated_tokens:
            stats.time_to_first_token = time.perf_counter() - request.started
        stats.generated_tokens += len(round.tokens)
        stats.target_calls += 1
        stats.drafted_tokens += round.drafted
        stats.accepted_tokens += round.accepted
        stats.accepted_histogram[round.accepted] += 1
        if round.drafted:
            stats.drafted_by_kind[round.kind] += round.drafted
            stats.accepted_by_kind[round.kind] += round.accepted
        stats.total_variation += round.total_variation
        stats.decode_seconds += round.seconds
        if round.draft_seconds is not None and round.verify_seconds is not None:
            stats.draft_seconds = (stats.draft_seconds or 0.0) + round.draft_seconds
            stats.verify_seconds = (stats.verify_seconds or 0.0) + round.verify_seconds
        stats.lossless = request.options.is_lossless or stats.drafted_tokens == 0
        stats.peak_memory_bytes = mx.get_peak_memory()
        if round.logprobs:
            request.logprobs += round.logprobs

    def _fill(self) -> None:
        """Give free slots to waiting requests."""
        wanted = min(self._slots, self.decoding + self.waiting)
        if self._batch is None:
            self._requests = [None] * wanted
        else:
            self._resize(self._batch, wanted)
        free = [slot for slot, request in enumerate(self._requests) if request is None][: self.waiting]
        for slot in free:
            if not self._encoded:
                self._encode()
            if not self._may_join(*self._encoded[0]):
                break
            self._assign(slot, *self._encoded.popleft())
        if free and self._batch is not None:  # the device computes these while the host builds the next round
            mx.async_eval(self._batch.cache.arrays)  # type: ignore[no-untyped-call]

    def _encode(self) -> None:
        """Encode the next requests, up to one for each slot."""
        if not self._sorted:
            count = min(len(self._queue), QUEUE_PER_SLOT * self._slots)
            requests = [self._queue.popleft() for _ in range(count)]
            self._sorted.extend(sorted(requests, key=lambda request: len(request.source)))

        group: dict[int, Request] = {}  # by source; the samples of a prompt share a source
        for request in islice(self._sorted, len(self._requests)):
            group.setdefault(id(request.source), request)
        started = time.perf_counter()
        sources = [request.source for request in group.values()]
        if self._widths.exact and not self._widths.any_width:  # bits depend on the number of rows encoded together
            outputs = [self._model.encode_rows([source])[0] for source in sources]
        else:
            outputs = self._model.encode_rows(sources)  # (1, S, d_model) each
        found: dict[int, Sequence[DraftText]] = {}  # by source
        if self._find_drafts is not None:
            mx.async_eval(outputs)  # type: ignore[no-untyped-call]  # the device encodes meanwhile
            for source, request in group.items():
                if request.options.follows_texts and request.options.draft_tokens != 0:
                    found[source] = self._find_drafts(request)
        if len(sources) > 1:
            outputs = self._finite(sources, outputs)
        mx.eval(outputs)
        encoder_outputs = dict(zip(group, outputs, strict=True))
        seconds = (time.perf_counter() - started) / len(group)

        for queue in (self._sorted, self._queue):
            for request in [each for each in queue if id(each.source) in group]:
                queue.remove(request)
                source = id(request.source)
                request.started = started
                request.stats.encode_seconds = seconds if group[source] is request else 0.0
                request.draft_texts = [*request.draft_texts, *found.get(source, ())]
                self._encoded.append((request, encoder_outputs[source]))

    def _finite(self, sources: Sequence[Source], outputs: list[mx.array]) -> list[mx.array]:
        """Return the outputs of sources encoded together. If any is not finite, encode the sources one by one.

        Non-finite values in the padding would corrupt the outputs of shorter sources, because 0 * inf is NaN.
        """
        finite = mx.stack([mx.isfinite(each).all() for each in outputs]).all()
        mx.eval(outputs, finite)
        if finite.item():
            return outputs
        return [self._model.encode_rows([source])[0] for source in sources]

    def _needed_capacity(self, request: Request) -> int:
        """Return the KV-cache capacity that this request's longest possible output needs."""
        return capacity_for(request.prefix_length + request.options.max_tokens + self._widths.reserved)

    def _may_join(self, request: Request, encoder_output: mx.array) -> bool:
        """Return whether a request may be decoded together with the batch's requests.

        With exact passes, it may not if it needs a cache so much larger or smaller that bits would differ. In that
        case, it waits until the batch is empty, and then starts with new buffers.
        """
        source_capacity = source_capacity_for(encoder_output.shape[1])
        own = self._widths.capacity_class(self._needed_capacity(request), source_capacity)
        if own != self._capacity_class:
            if self.decoding:
                return False
            self._capacity_class = own
            if self._batch is not None:
                slots = len(self._requests)
                self._batch.use_cache(self._model.assign_slot(None, 0, slots, encoder_output, self._num_beams))
        return True

    def _assign(self, slot: int, request: Request, encoder_output: mx.array) -> None:
        batch = self._batch
        slots = len(self._requests)
        request.slot = slot
        self._requests[slot] = request
        cache = None if batch is None else batch.cache
        capacity = self._needed_capacity(request)
        if not self._widths.reaches_border(capacity):
            capacity = 0
        prefill = None
        if request.prefix_length > 1 or request.observer is not None:
            prefill = partial(self._prefill, request, capacity)
        cache = self._model.assign_slot(cache, slot, slots, encoder_output, self._num_beams, prefill)
        if batch is None:
            self._batch = Batch(
                self._model, self._drafter, cache, self._requests, self._widths, overlap_baseline_passes=self._overlap
            )
        if capacity:
            cache.reserve(capacity)
        self._drafter.begin(request, encoder_output)

    def _prefill(self, request: Request, capacity: int, cache: DecoderCache) -> None:
        """Feed a forced prefix except its last token, which the first round feeds. Nothing is evaluated yet.

        Args:
            request: The request whose output begins with the prefix.
            capacity: The minimum capacity of the cache; 0 leaves it unchanged.
            cache: A cache for this request only, so that no other rows are computed.
        """
        if capacity:
            cache.reserve(capacity)
        cached = request.prefix_length - 1
        observer = request.observer
        prefix = request.decoder_tokens[: max(cached, 0 if observer is None else observer.position)]
        for start, count, width in self._widths.chunks(1, len(prefix)):
            ids = prefix[start : start + count] + [self._model.config.pad_token_id] * (width - count)
            states = self._model.states(mx.array([ids] * cache.rows, mx.uint32), cache)
            cache.trim_to([start + count] * cache.rows)
            if observer is not None and start < observer.position <= start + count:
                observer.prefilled(self._model.logits(states[0, observer.position - 1 - start]))
        cache.trim_to([cached] * cache.rows)

    def _resize(self, batch: Batch, wanted: int) -> None:
        """Change the number of slots to about `wanted`, because a pass computes every slot, even a free one.

        Small changes are skipped: the batch at least doubles (up to the maximum), or shrinks to half or less.
        """
        slots = len(self._requests)
        if wanted > slots:
            size = min(self._slots, max(wanted, 2 * slots))
        elif 0 < wanted <= slots // 2:
            size = wanted
        else:
            return
        kept = [slot for slot, request in enumerate(self._requests) if request is not None]
        order = (kept + [slot for slot in range(slots) if slot not in kept] + [0] * size)[:size]
        batch.cache.select(order)
        self._drafter.select(order)
        self._requests = [self._requests[slot] if i < len(kept) else None for i, slot in enumerate(order)]
        batch.slots = self._requests
        for slot, request in enumerate(self._requests):
            if request is not None:
                request.slot = slot
