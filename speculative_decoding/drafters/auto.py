"""Copies where the text repeats itself, asks the draft model where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .base import COPY, MODEL, BatchDrafter, Draft, Row, Verified, Wanted, merged
from .ngram import NgramDrafter

SURE = 0.5  # per token: a copy costs nothing, so the draft model would have to be right much more often


class AutoDrafter(BatchDrafter):
    """Takes a copy that is right with at least `sure` chance per token; otherwise the draft model proposes.

    As in SAM-Decoding (Hu et al. 2024, 2411.10666, section 3.3), where the length of the match decides; here it is what
    matches of that length and origin have been worth so far.

    ngram: gives each request its own drafter by `fresh`. vocab_size: the target's.
    """

    def __init__(self, ngram: NgramDrafter, model: BatchDrafter, vocab_size: int, sure: float = SURE) -> None:
        self._ngram, self._model, self._vocab_size, self._sure = ngram, model, vocab_size, sure
        self._copies: dict[int, NgramDrafter] = {}

    def begin(self, row: Row) -> None:
        self._copies[row.slot] = self._ngram.fresh()
        self._copies[row.slot].begin(row.source)
        self._model.begin(row)

    def kind(self, row: Row) -> str:
        return COPY if self._copies[row.slot].match(row.tokens).chance >= self._sure else MODEL

    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        ids: list[Sequence[int]] = [()] * slots
        for each in wanted:
            if each.kind == COPY:
                ids[each.row.slot] = self._copies[each.row.slot].propose(each.row.tokens, each.count)
        copied = Draft.certain(ids)
        others = [each for each in wanted if each.kind != COPY]
        if not others:
            return copied
        proposed = self._model.propose(others, slots)
        parts = [([each.row.slot for each in others], proposed), ([slot for slot in range(slots) if ids[slot]], copied)]
        return merged(parts, slots, self._vocab_size)

    def observe(self, rows: Sequence[Row], verified: Verified) -> None:
        for row in rows:
            self._copies[row.slot].observe(row.tokens, partial(verified.likeliest, row.slot))
        self._model.observe(rows, verified)

    def end(self, row: Row) -> None:
        self._copies[row.slot].end(row.tokens)
        self._model.end(row)

    def select(self, slots: Sequence[int]) -> None:
        self._copies = {i: self._copies[slot] for i, slot in enumerate(slots) if slot in self._copies}
        self._model.select(slots)
