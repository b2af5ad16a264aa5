"""Drafts from a draft head, which reads the target's own states and cross-attention cache, for all rows in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from ..models.draft_head import DraftHead
from .base import MODEL, BatchDrafter, Draft, Row, Verified, Wanted
from .draft_model import DraftModel, DraftVocabulary, OutputHead
from .model import Chain


class BatchHeadDrafter(BatchDrafter):
    """Nothing is rewound: the state of a draft begins with what the target's last pass verified."""

    def __init__(self, head: DraftHead, target: EncoderDecoder) -> None:
        self._head, self._target = head, target
        frequent, by_source = tuple(head.config.frequent), head.config.by_source
        self._outputs = DraftModel(target, DraftVocabulary(frequent, by_source) if frequent else None)
        self._cache: DecoderCache | None = None
        self._sources: dict[int, list[int]] = {}  # by slot
        self._hidden: Sequence[mx.array] = ()  # of the last pass of the target
        self._places: dict[int, int] = {}  # by slot: where in that pass its last verified token stands
        self._output_head: OutputHead | None = None

    def share(self, cache: DecoderCache) -> None:
        self._cache, cache.kept_layers = cache, tuple(self._head.config.layers)

    def begin(self, row: Row) -> None:
        self._sources[row.slot] = row.source
        self._places.pop(row.slot, None)
        self._output_head = None

    def kind(self, row: Row) -> str:
        return MODEL

    def observe(self, rows: Sequence[Row], verified: Verified) -> None:
        assert self._cache is not None
        self._hidden = self._cache.hidden
        self._places = {slot: count - 1 for slot, count in verified.counts.items()}

    def select(self, slots: Sequence[int]) -> None:
        self._sources = {i: self._sources[slot] for i, slot in enumerate(slots) if slot in self._sources}
        self._places = {i: self._places[slot] for i, slot in enumerate(slots) if slot in self._places}
        self._hidden = [mx.take(each, mx.array(list(slots)), axis=0) for each in self._hidden]
        self._output_head = None

    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        cache, target = self._cache, self._target
        assert cache is not None
        if self._output_head is None:
            sources = [self._sources.get(slot, []) for slot in range(slots)]
            self._output_head = self._outputs.head(sources, target.config.vocab_size)
        chain = Chain(wanted, slots, self._output_head)
        last = {each.row.slot: each.row.tokens[-1] for each in wanted}
        new = mx.array([[last.get(slot, target.config.pad_token_id)] for slot in range(slots)])
        state, cross = self._features(slots), cache.last_cross_attention
        while True:
            step = target.embed(new), state, cross.cross_keys, cross.cross_values, cache.source_mask
            state, outputs = self._head.step_and_outputs(*step)
            new = chain.choose(outputs)
            if chain.is_done:
                return chain.draft()

    def _features(self, slots: int) -> mx.array:
        """(B, d)."""
        if not self._hidden:
            return mx.broadcast_to(self._head.start_state, (slots, self._head.config.d_model))
        places = mx.array([[[self._places.get(slot, 0)]] for slot in range(slots)])
        is_first = mx.array([[slot not in self._places] for slot in range(slots)])
        return self._head.features_at(self._hidden, places, is_first)
