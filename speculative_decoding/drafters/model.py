"""Drafts from a smaller encoder-decoder (Leviathan et al. 2023; Chen et al. 2023), for all rows in one pass."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import mlx.core as mx

from ..models.cache import DecoderCache
from ..models.shared_encoder import CROSS_ATTENTION
from ..models.source import Source, token_ids
from .base import MODEL, BatchDrafter, Draft, RequestView, num_shared, renumbered
from .draft_model import DraftModel
from .draft_sampler import DraftSampler, OutputHead


class BatchModelDrafter(BatchDrafter):
    """Decodes ahead with a draft model, sampling each row with its own options. Lazy: never waits for the device.

    Args:
        draft_model: The model, optionally with a reduced vocabulary.
        vocab_size: The target's vocabulary size, which may include more padding than the draft model's.
    """

    def __init__(self, draft_model: DraftModel, vocab_size: int) -> None:
        self._model = draft_model.model
        vocabulary = draft_model.vocabulary
        if vocabulary is None:
            self._output_head = OutputHead(self._model, vocab_size)
        else:
            self._output_head = OutputHead(self._model, vocab_size, vocabulary.ids, vocabulary.by_source)
        self._shares = draft_model.shares
        self._target_cache: DecoderCache | None = None  # set if its cross keys and values are also the draft model's
        self._cache: DecoderCache | None = None
        # By slot:
        self._sources: dict[int, Source] = {}
        self._encoder_outputs: dict[int, mx.array] = {}  # from the target, kept until the cache is filled
        self._held: dict[int, list[int]] = {}  # the ids in the cache; set once the source has been encoded
        self._drafted: tuple[list[int], mx.array] | None = None  # slots and (B, K) ids of the last draft

    def use_cache(self, cache: DecoderCache) -> None:
        if self._shares == CROSS_ATTENTION:
            self._target_cache = cache

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        self._read_drafted()
        slot = request.slot
        self._sources[slot] = request.source
        self._encoder_outputs.pop(slot, None)
        if self._shares and self._target_cache is None and encoder_output is not None:
            self._encoder_outputs[slot] = encoder_output
        self._held.pop(slot, None)

    def kind_and_limit(self, request: RequestView) -> tuple[str, int]:
        return MODEL, sys.maxsize

    def select(self, slots: Sequence[int]) -> None:
        self._read_drafted()
        self._sources = renumbered(self._sources, slots)
        self._encoder_outputs = renumbered(self._encoder_outputs, slots)
        self._held = renumbered(self._held, slots)
        if self._cache is not None:
            self._cache.select(slots)

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        self._read_drafted()
        requests = {request.slot: request for request in counts}
        self._read_sources([*requests], slots)
        cache = self._cache
        assert cache is not None
        before = cache.offsets
        states = self._catch_up(cache, requests)
        self._output_head.use_sources([token_ids(self._sources.get(slot, [])) for slot in range(slots)])
        sampler = DraftSampler(counts, slots, self._output_head)
        new = sampler.choose(states[:, 0])
        for _ in range(sampler.longest - 1):
            new = sampler.choose(self._model.states(sampler.ids(new), cache)[:, 0])

        cache.trim_to([cache.offsets[slot] if slot in requests else before[slot] for slot in range(slots)])
        draft = sampler.draft()
        self._drafted = [*requests], draft.tokens
        for slot, request in requests.items():
            self._held[slot] = list(request.decoder_tokens)
        return draft

    def _read_drafted(self) -> None:
        """Append the last draft to `_held`. This does not wait, because the draft was evaluated with its round."""
        if self._drafted is not None:
            slots, tokens = self._drafted
            ids: list[list[int]] = tokens.tolist()  # type: ignore[assignment]
            for slot in slots:
                self._held[slot] += ids[slot][:-1]  # the last draft token was not fed to the model
            self._drafted = None

    def _read_sources(self, drafting: Sequence[int], slots: int) -> None:
        """Encode, in one batch, the sources of slots that draft for the first time, or share the target's cache."""
        new = [slot for slot in drafting if slot not in self._held]
        if self._target_cache is not None:
            self._cache = self._cache or DecoderCache.beside(self._target_cache)
            self._cache.follow_sources(self._target_cache)
            self._held |= {slot: [] for slot in new}
            return
        unread = [slot for slot in new if slot not in self._encoder_outputs]
        encoder_outputs = self._model.encode_rows([self._sources[slot] for slot in unread]) if unread else []
        self._encoder_outputs |= dict(zip(unread, encoder_outputs, strict=True))
        for slot in new:
            encoder_output = self._encoder_outputs.pop(slot)
            self._cache = self._model.assign_slot(self._cache, slot, slots, encoder_output)
            self._held[slot] = []

    def _catch_up(self, cache: DecoderCache, requests: dict[int, RequestView]) -> mx.array:
        """Feed the committed tokens that the cache lacks, and return the state of each row's last token, (B, 1, d).

        The cache keeps the longest prefix that it shares with the committed tokens, except that the last committed
        token is always fed again. Rows without a draft request are fed padding.
        """
        largest_id = self._model.config.vocab_size - 1  # the target's vocabulary may be padded to a larger size
        padding = self._model.config.pad_token_id
        kept = {
            slot: min(num_shared(self._held[slot], request.decoder_tokens), len(request.decoder_tokens) - 1)
            for slot, request in requests.items()
        }
        cache.trim_to([kept.get(slot, offset) for slot, offset in enumerate(cache.offsets)])
        missing = [
            [min(token, largest_id) for token in requests[slot].decoder_tokens[kept[slot] :]]
            if slot in requests
            else [padding]
            for slot in range(cache.rows)
        ]
        longest = max(map(len, missing))
        width = 1 << (longest - 1).bit_length()  # a power of two: tracing a new width takes as long as several passes
        before = cache.offsets
        padded = [ids + [padding] * (width - len(ids)) for ids in missing]
        states = self._model.states(mx.array(padded, mx.uint32), cache)
        cache.trim_to(
            [len(requests[slot].decoder_tokens) if slot in requests else before[slot] for slot in range(cache.rows)]
        )
        if width == 1:
            return states
        last = mx.array([len(ids) - 1 for ids in missing])
        return mx.take_along_axis(states, last[:, None, None], axis=1)


def build(ngram: object, model: BatchDrafter | None, vocab_size: int) -> BatchDrafter:
    assert model is not None  # see `drafters.check_drafter`
    return model
