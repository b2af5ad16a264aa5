"""Copies text where it repeats, and uses the draft model elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..models.cache import DecoderCache
from .base import COPY, MODEL, BatchDrafter, Draft, DraftRequest, RequestView, merged, token_rows
from .ngram import NgramDrafter
from .separate import SeparateDrafters


class AutoDrafter(BatchDrafter):
    """Drafts a copy if its chance per token is at least `sure` and close to the draft model's acceptance rate.

    SAM-Decoding (Hu et al. 2024, 2411.10666, section 3.3) decides by the length of the match. This drafter uses the
    acceptance observed for matches of that length and origin, and for the model's drafts.

    Args:
        ngram: Makes a drafter for each request (`fresh`).
        model: Drafts where no copy is likely.
        vocab_size: The target's.
        sure: Minimum chance per token of a copy.
    """

    def __init__(self, ngram: NgramDrafter, model: BatchDrafter, vocab_size: int, sure: float = 0.5) -> None:
        self._copies = SeparateDrafters(ngram.fresh, vocab_size)
        self._model = model
        self._vocab_size = vocab_size
        self._sure = sure
        self._chances = ngram.chances
        self._proposed: Draft | None = None  # the model's draft of this round

    def share(self, cache: DecoderCache) -> None:
        self._model.share(cache)

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        self._copies.begin(request, encoder_output)
        self._model.begin(request, encoder_output)

    def kind(self, request: RequestView) -> str:
        # A copy costs nothing, so its chance may be lower than the model's acceptance rate by 0.1.
        least = max(self._sure, self._chances.chance(MODEL, 0) - 0.1)
        match = self._copies.of(request).match(request.decoder_tokens)
        return COPY if match.chance >= least else MODEL

    def longest(self, request: RequestView, kind: str) -> int:
        return (self._copies if kind == COPY else self._model).longest(request, kind)

    def propose(self, draft_requests: Sequence[DraftRequest], slots: int) -> Draft:
        copies = [each for each in draft_requests if each.kind == COPY]
        others = [each for each in draft_requests if each.kind != COPY]
        copied = self._copies.propose(copies, slots)
        if not others:
            return copied
        self._proposed = self._model.propose(others, slots)
        return merged(self._proposed, copied, [each.request.slot for each in copies], self._vocab_size)

    def observe(self, requests: Sequence[RequestView], counts: Sequence[int]) -> None:
        self._model.observe(requests, counts)
        draft = self._proposed
        if draft is None:
            return
        ids = token_rows(draft.tokens)  # evaluated with the round
        for request, count in zip(requests, counts, strict=True):
            slot = request.slot
            self._chances.observe(MODEL, 0, ids[slot][: draft.length(slot)], request.decoder_tokens[-count:])
        self._proposed = None

    def end(self, request: RequestView) -> None:
        self._copies.end(request)
        self._model.end(request)

    def select(self, slots: Sequence[int]) -> None:
        self._copies.select(slots)
        self._model.select(slots)
