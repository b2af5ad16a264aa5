"""Copies given or earlier text where the output repeats it. Elsewhere, the draft model drafts, if there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import mlx.core as mx

from ..models.cache import DecoderCache
from .base import MODEL, BatchDrafter, Draft, RequestView, merged, renumbered
from .ngram import NgramDrafter


class AutoDrafter(BatchDrafter):
    """Drafts a copy if a copied token's chance is at least `min_chance` and not far below the model's acceptance rate.

    SAM-Decoding (Hu et al. 2024, 2411.10666, section 3.3) decides by the length of the match. This drafter instead
    uses the acceptance rates observed for matches of similar length and origin, and for the model's drafts.

    Args:
        ngram: The n-gram drafter. Its `fresh` method creates a drafter for each request.
        model: Drafts where a copy is unlikely to be right. If None, all drafts are copies.
        vocab_size: The target's vocabulary size. Larger ids, which a text store may contain, are not proposed.
        min_chance: The minimum chance that a copied token is right; used only with a model.
    """

    def __init__(
        self, ngram: NgramDrafter, model: BatchDrafter | None, vocab_size: int, min_chance: float = 0.5
    ) -> None:
        self._ngram = ngram
        self._model = model
        self._vocab_size = vocab_size
        self._known = range(vocab_size)
        self._min_chance = min_chance
        self._copies: dict[int, NgramDrafter] = {}  # by slot
        self._copying: set[int] = set()  # slots whose next draft is a copy, see `kind_and_limit`
        self._proposed: Draft | None = None  # the model's draft of this round

    def use_cache(self, cache: DecoderCache) -> None:
        if self._model is not None:
            self._model.use_cache(cache)

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        copies = self._copies[request.slot] = self._ngram.fresh()
        copies.begin(request.source_tokens, request.draft_texts, request.decoder_tokens[1:])
        if self._model is not None:
            self._model.begin(request, encoder_output)

    def kind_and_limit(self, request: RequestView) -> tuple[str, int]:
        slot, tokens = request.slot, request.decoder_tokens
        copies = self._copies[slot]
        if self._model is not None:
            # A copy costs nothing, so its chance may be lower than the model's acceptance rate by 0.1. Comparing the
            # expected tokens per second leads to nearly the same choices (docs/decisions/text-drafts.md).
            least = max(self._min_chance, self._ngram.chances.chance(MODEL, 0) - 0.1)
            if copies.match(tokens).chance < least:
                self._copying.discard(slot)
                return MODEL, self._model.kind_and_limit(request)[1]
        self._copying.add(slot)
        return copies.match(tokens).kind, copies.longest(tokens)

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        ids: list[Sequence[int]] = [()] * slots
        copied_slots = []
        others = {}
        for request, count in counts.items():
            slot = request.slot
            if self._model is not None and slot not in self._copying:
                others[request] = count
                continue
            found = self._copies[slot].propose(request.decoder_tokens, count)
            ids[slot] = [*takewhile(self._known.__contains__, found)]
            copied_slots.append(slot)
        copied = Draft.from_lists(ids)
        if self._model is None or not others:
            return copied
        self._proposed = self._model.propose(others, slots)
        return merged(self._proposed, copied, copied_slots, self._vocab_size) if copied_slots else self._proposed

    def observe(self, requests: Sequence[RequestView], counts: Sequence[int]) -> None:
        if self._model is not None:
            self._model.observe(requests, counts)
        draft = self._proposed
        if draft is None:
            return
        ids = draft.to_lists()  # evaluated with the round
        for request, count in zip(requests, counts, strict=True):
            self._ngram.chances.observe(MODEL, 0, ids[request.slot], request.decoder_tokens[-count:])
        self._proposed = None

    def end(self, request: RequestView) -> None:
        self._copies[request.slot].end(request.decoder_tokens)
        if self._model is not None:
            self._model.end(request)

    def select(self, slots: Sequence[int]) -> None:
        self._copies = renumbered(self._copies, slots)
        if self._model is not None:
            self._model.select(slots)


def build(ngram: NgramDrafter, model: BatchDrafter | None, vocab_size: int) -> BatchDrafter:
    return AutoDrafter(ngram, model, vocab_size)
