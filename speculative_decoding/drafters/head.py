"""Drafts from a draft head, which reads the target's own states and memory, for all rows in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from ..models.draft_head import DraftHead
from .base import MODEL, BatchDrafter, Draft, Row, Verified, Wanted
from .draft_model import DraftModel, DraftVocabulary, OutputHead
from .model import Chain

AHEAD = 2  # tokens that the device writes while the host reads a verdict; those in vain delay it little


class Step(NamedTuple):
    """One of a draft, for all rows: the state behind it and what the output head reads, (B, 1, d)."""

    state: mx.array
    outputs: mx.array


class BatchHeadDrafter(BatchDrafter):
    """Nothing is rewound: the state of a draft begins with what the target's last pass verified. So the next draft can
    begin as soon as the device knows what that is, before the host does.
    """

    def __init__(self, head: DraftHead, target: EncoderDecoder) -> None:
        self._head, self._target = head, target
        frequent = tuple(head.config.frequent)
        self._outputs = DraftModel(target, DraftVocabulary(frequent) if frequent else None)
        self._cache: DecoderCache | None = None
        self._sources: dict[int, list[int]] = {}  # by slot
        self._hidden: Sequence[mx.array] = ()  # of the last pass of the target
        self._places: dict[int, int] = {}  # by slot: where in that pass its last verified token stands
        self._output_head: OutputHead | None = None
        self._next: list[tuple[Step, mx.array]] = []  # of the next draft, with the likeliest tokens (B, 1)
        self._ahead: list[tuple[Step, mx.array]] = []  # the same, for rows of which nothing has changed since

    def share(self, cache: DecoderCache) -> None:
        self._cache, cache.kept_layers = cache, tuple(self._head.config.layers)

    def begin(self, row: Row) -> None:
        self._sources[row.slot] = row.source
        self._places.pop(row.slot, None)
        self._output_head = None

    def kind(self, row: Row) -> str:
        return MODEL

    def begin_next(self, wanted: Sequence[Wanted], accepted: mx.array, next_token: mx.array) -> None:
        """Where tokens depend on nothing but the states: elsewhere it needs the tokens themselves."""
        self._next = []
        if self._output_head is None or not all(each.row.options.is_greedy for each in wanted):
            return
        assert self._cache is not None
        places = accepted[:, None, None]
        state = self._head.features_at(self._cache.hidden, places, mx.zeros(places.shape, mx.bool_))
        tokens = next_token[:, None]
        for _ in range(min(AHEAD, max((each.count for each in wanted), default=0))):
            step = self._step(tokens, state)
            state, tokens = step.state, self._output_head.likeliest(step.outputs)
            self._next.append((step, tokens))
        mx.async_eval([tokens for _, tokens in self._next])  # type: ignore[no-untyped-call]

    def observe(self, rows: Sequence[Row], verified: Verified) -> None:
        assert self._cache is not None
        self._hidden = self._cache.hidden
        self._places = {slot: count - 1 for slot, count in verified.counts.items()}
        self._ahead, self._next = self._next, []

    def select(self, slots: Sequence[int]) -> None:
        self._sources = {i: self._sources[slot] for i, slot in enumerate(slots) if slot in self._sources}
        self._places = {i: self._places[slot] for i, slot in enumerate(slots) if slot in self._places}
        self._hidden = [mx.take(each, mx.array(list(slots)), axis=0) for each in self._hidden]
        self._output_head, self._ahead = None, []

    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        if self._output_head is None:
            sources = [self._sources.get(slot, []) for slot in range(slots)]
            self._output_head = self._outputs.head(sources, self._target.config.vocab_size)
        chain = Chain(wanted, slots, self._output_head)
        ahead, self._ahead = self._ahead if all(each.row.slot in self._places for each in wanted) else [], []
        before = None if ahead else (self._last_tokens(wanted, slots), self._features(slots))
        while True:
            step, likeliest = ahead.pop(0) if before is None else (self._step(*before), None)
            new = chain.choose(step.outputs, likeliest)
            # The device computes it while the host prepares what follows it.
            mx.async_eval(new)  # type: ignore[no-untyped-call]
            if chain.is_done:
                return chain.draft()
            before = None if ahead and new is likeliest else (new, step.state)

    def _step(self, tokens: mx.array, state: mx.array) -> Step:
        assert self._cache is not None
        memory = self._cache.last_memory
        arrays = memory.cross_keys, memory.cross_values, self._cache.memory_mask
        return Step(*self._head.step_and_outputs(self._target.embed(tokens), state, *arrays))

    def _last_tokens(self, wanted: Sequence[Wanted], slots: int) -> mx.array:
        """(B, 1)."""
        last = {each.row.slot: each.row.tokens[-1] for each in wanted}
        return mx.array([[last.get(slot, self._target.config.pad_token_id)] for slot in range(slots)])

    def _features(self, slots: int) -> mx.array:
        """(B, 1, d)."""
        if not self._hidden:
            return mx.broadcast_to(self._head.beginning, (slots, 1, self._head.config.d_model))
        places = mx.array([self._places.get(slot, 0) for slot in range(slots)])[:, None, None]
        is_first = mx.array([slot not in self._places for slot in range(slots)])[:, None, None]
        return self._head.features_at(self._hidden, places, is_first)
