"""Drafts from a draft head, which reads the target's hidden states and cross-attention cache."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

import mlx.core as mx

from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from ..models.draft_head import DraftHead
from .base import MODEL, BatchDrafter, Draft, RequestView, renumbered
from .draft_sampler import DraftSampler, OutputHead


class BatchHeadDrafter(BatchDrafter):
    """Drafts for all rows at once, from the hidden states of the target's last pass, without a draft cache."""

    def __init__(self, head: DraftHead, target: EncoderDecoder) -> None:
        self._head = head
        self._target = target
        config = head.config
        self._output_head = OutputHead(target, target.config.vocab_size, config.frequent, config.by_source)
        self._cache: DecoderCache | None = None
        self._hidden: Sequence[mx.array] = ()  # of the target's last pass
        # By slot:
        self._sources: dict[int, Sequence[int]] = {}
        self._last_verified: dict[int, int] = {}  # the position of the last verified token in the target's last pass

    def use_cache(self, cache: DecoderCache) -> None:
        self._cache = cache
        cache.recorded_layers = tuple(self._head.config.layers)

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        self._sources[request.slot] = request.source_tokens
        self._last_verified.pop(request.slot, None)

    def kind_and_limit(self, request: RequestView) -> tuple[str, int]:
        return MODEL, sys.maxsize

    def observe(self, requests: Sequence[RequestView], counts: Sequence[int]) -> None:
        assert self._cache is not None
        self._hidden = self._cache.hidden
        self._last_verified = {request.slot: count - 1 for request, count in zip(requests, counts, strict=True)}

    def select(self, slots: Sequence[int]) -> None:
        self._sources = renumbered(self._sources, slots)
        self._last_verified = renumbered(self._last_verified, slots)
        self._hidden = [mx.take(each, mx.array(list(slots)), axis=0) for each in self._hidden]

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        cache = self._cache
        target = self._target
        assert cache is not None

        self._output_head.use_sources([self._sources.get(slot, []) for slot in range(slots)])
        sampler = DraftSampler(counts, slots, self._output_head)
        last = {request.slot: request.decoder_tokens[-1] for request in counts}
        tokens = mx.array([[last.get(slot, target.config.pad_token_id)] for slot in range(slots)])  # (B, 1)
        embedded = target.embed(tokens)
        state = self._features(counts, slots)
        cross = cache.last_cross_attention
        for _ in range(sampler.longest):
            step = embedded, state, cross.cross_keys, cross.cross_values, cache.source_mask
            state = self._head.compiled_step(*step)
            embedded = sampler.embedded(sampler.choose(state))
        return sampler.draft()

    def _features(self, requests: Iterable[RequestView], slots: int) -> mx.array:
        """Return the state from which the head starts each row's draft, (B, d); see `DraftHead.features_at`."""
        if not self._hidden:
            return mx.broadcast_to(self._head.outputs(self._head.start_state), (slots, self._head.config.d_model))
        positions = mx.array([self._last_verified.get(slot, 0) for slot in range(slots)])
        state = self._head.features_at(self._hidden, positions.reshape(slots, 1, 1, 1))
        if all(request.slot in self._last_verified for request in requests):
            return state
        is_first = mx.array([[slot not in self._last_verified] for slot in range(slots)])
        return mx.where(is_first, self._head.outputs(self._head.start_state), state)
