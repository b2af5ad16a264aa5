"""Copies where the text repeats itself, asks the draft model where it does not."""

from __future__ import annotations

from collections.abc import Sequence

from ..sampling import SamplingParams
from .base import Draft
from .batch import Asked, BatchDrafter, SeparateDrafters
from .ngram import NgramDrafter

LONG_MATCH = 4  # tokens; from here on a copy is right at least as often as a draft model, and costs nothing


class AutoDrafter(BatchDrafter):
    """A match of at least `long_match` tokens is copied, otherwise `model` speaks (algorithms of SAM-Decoding,
    2411.10666, section 3.3: the length of the match says how sure the copy is).
    """

    def __init__(self, ngram: NgramDrafter, model: BatchDrafter, long_match: int = LONG_MATCH) -> None:
        self._copies = SeparateDrafters(lambda sampling, coupled: ngram.fresh())
        self._model, self._long_match = model, long_match

    def begin(self, slot: int, input_tokens: Sequence[int], sampling: SamplingParams, *, coupled: bool) -> None:
        self._ngrams[slot] = self._ngram.fresh()
        self._ngrams[slot].begin(input_tokens)
        self._model.begin(slot, input_tokens, sampling, coupled=coupled)

    def kind(self, slot: int, tokens: Sequence[int]) -> str:
        return "copy" if self._ngrams[slot].match(tokens).length >= self._long_match else "model"

    def propose(self, asked: Sequence[Asked]) -> list[Draft]:
        drafts = {
            each.slot: self._ngrams[each.slot].propose(each.tokens, each.num_draft_tokens)
            for each in asked
            if each.kind == "copy"
        }
        spoken = [each for each in asked if each.kind != "copy"]
        drafts |= dict(zip([each.slot for each in spoken], self._model.propose(spoken), strict=True))
        return [drafts[each.slot] for each in asked]
