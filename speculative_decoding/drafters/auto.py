"""Copies where the text repeats itself, asks the draft model where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..sampling import SamplingParams
from .base import COPY, GUESS, MODEL, Draft
from .batch import Asked, BatchDrafter
from .ngram import NgramDrafter

SURE = 0.5  # per token: a copy costs nothing, so the draft model would have to be right much more often


class AutoDrafter(BatchDrafter):
    """A copy that is right with at least `sure` chance per token is taken, otherwise `model` speaks, or the copy is
    tried all the same: a length that knows costs chooses between the two.

    As in SAM-Decoding (Hu et al. 2024, 2411.10666, section 3.3), where the length of the match decides; here it is what
    matches of that length and origin have been worth so far.
    """

    def __init__(self, ngram: NgramDrafter, model: BatchDrafter, sure: float = SURE) -> None:
        self._ngram, self._model, self._sure = ngram, model, sure
        self._copies: dict[int, NgramDrafter] = {}

    def read(self, sources: Sequence[Sequence[int]]) -> list[Any]:
        return self._model.read(sources)

    def begin(self, slot: int, source: Sequence[int], reading: Any, sampling: SamplingParams, *, coupled: bool) -> None:
        self._copies[slot] = self._ngram.fresh()
        self._copies[slot].begin(source)
        self._model.begin(slot, source, reading, sampling, coupled=coupled)

    def kinds(self, slot: int, tokens: Sequence[int]) -> Sequence[str]:
        copies = self._copies[slot]
        match = copies.match(tokens)
        if match.chance >= self._sure:
            return (COPY,)
        return (MODEL, GUESS) if copies.reach(match) else (MODEL,)

    def propose(self, asked: Sequence[Asked]) -> list[Draft]:
        spoken = [each for each in asked if each.kind not in (COPY, GUESS)]
        drafts = {each.slot: draft for each, draft in zip(spoken, self._model.propose(spoken), strict=True)}
        for each in asked:
            if each.kind in (COPY, GUESS):
                drafts[each.slot] = self._copies[each.slot].propose(each.tokens, each.num_draft_tokens)
        return [drafts[each.slot] for each in asked]

    def select(self, slots: Sequence[int]) -> None:
        self._copies = {i: self._copies[slot] for i, slot in enumerate(slots)}
        self._model.select(slots)

    def end(self, slot: int, tokens: Sequence[int]) -> None:
        self._copies[slot].end(tokens)

    def top_k(self, slot: int) -> int:
        return self._copies[slot].top_k

    def learn(self, slot: int, tokens: Sequence[int], likeliest: Sequence[Sequence[int]]) -> None:
        self._copies[slot].learn(tokens, likeliest)
