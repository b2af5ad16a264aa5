"""Copies where the text repeats itself, asks the draft model where it does not."""

from __future__ import annotations

from collections.abc import Sequence

from ..models.cache import DecoderCache
from .base import COPY, MODEL, BatchDrafter, Draft, Row, Verified, Wanted, merged, token_rows
from .ngram import NgramDrafter
from .separate import SeparateDrafters

SURE = 0.5  # the least chance per token of a copy that is taken
DISCOUNT = 0.1  # by so much less than the model's tokens may a copy's be right, for it costs nothing (docs/LOG.md)


class AutoDrafter(BatchDrafter):
    """Takes a copy that is right with at least `sure` chance per token, and not much less often than the draft model
    has been; otherwise the draft model proposes.

    As in SAM-Decoding (Hu et al. 2024, 2411.10666, section 3.3), where the length of the match decides; here it is what
    matches of that length and origin, and drafts of the model, have been worth so far.

    ngram: gives each request its own drafter by `fresh`. vocab_size: the target's.
    """

    def __init__(self, ngram: NgramDrafter, model: BatchDrafter, vocab_size: int, sure: float = SURE) -> None:
        self._copies, self._model = SeparateDrafters(ngram.fresh, vocab_size), model
        self._vocab_size, self._sure, self._chances = vocab_size, sure, ngram.chances
        self._proposed: Draft | None = None  # by the model, in this round

    def share(self, cache: DecoderCache) -> None:
        self._model.share(cache)

    def begin(self, row: Row) -> None:
        self._copies.begin(row)
        self._model.begin(row)

    def kind(self, row: Row) -> str:
        least = max(self._sure, self._chances.chance(MODEL, 0) - DISCOUNT)
        return COPY if self._copies.of(row).match(row.tokens).chance >= least else MODEL

    def longest(self, row: Row, kind: str) -> int:
        return (self._copies if kind == COPY else self._model).longest(row, kind)

    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        copies = [each for each in wanted if each.kind == COPY]
        others = [each for each in wanted if each.kind != COPY]
        copied = self._copies.propose(copies, slots)
        if not others:
            return copied
        self._proposed = self._model.propose(others, slots)
        return merged(self._proposed, copied, [each.row.slot for each in copies], self._vocab_size)

    def observe(self, rows: Sequence[Row], verified: Verified) -> None:
        self._model.observe(rows, verified)
        if (draft := self._proposed) is None:
            return
        ids = token_rows(draft.tokens)  # evaluated with the round
        for row in rows:
            written = row.tokens[-verified.counts[row.slot] :]
            self._chances.observe(MODEL, 0, ids[row.slot][: draft.length(row.slot)], written)
        self._proposed = None

    def end(self, row: Row) -> None:
        self._copies.end(row)
        self._model.end(row)

    def select(self, slots: Sequence[int]) -> None:
        self._copies.select(slots)
        self._model.select(slots)
