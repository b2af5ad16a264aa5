"""Drafters that know one row, side by side for the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from .base import BatchDrafter, Draft, Drafter, Row, Verified, Wanted, merged


class SeparateDrafters(BatchDrafter):
    """A drafter of its own for each request; what they share is up to them.

    make: gives one for a request. vocab_size: V, of drafts that bring distributions.
    """

    def __init__(self, make: Callable[[], Drafter], vocab_size: int | None = None) -> None:
        self._make, self._vocab_size = make, vocab_size
        self._drafters: dict[int, Drafter] = {}

    def begin(self, row: Row) -> None:
        self._drafters[row.slot] = self._make()
        self._drafters[row.slot].begin(row.source)

    def of(self, row: Row) -> Drafter:
        return self._drafters[row.slot]

    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        ids: list[Sequence[int]] = [()] * slots
        drafts = []
        for each in wanted:
            found = self.of(each.row).propose(each.row.tokens, each.count)
            if isinstance(found, Draft):
                drafts.append(((each.row.slot,), in_slot(found, each.row.slot, slots)))
            else:
                ids[each.row.slot] = found
        certain = Draft.certain(ids)
        if not drafts:
            return certain
        looked_up = [slot for slot, found in enumerate(ids) if found]
        return merged([(looked_up, certain), *drafts], slots, self._vocab_size)

    def kind(self, row: Row) -> str:
        return self.of(row).kind

    def observe(self, rows: Sequence[Row], verified: Verified) -> None:
        for row in rows:
            self.of(row).observe(row.tokens, partial(verified.likeliest, row.slot))

    def end(self, row: Row) -> None:
        self.of(row).end(row.tokens)

    def select(self, slots: Sequence[int]) -> None:
        self._drafters = {i: self._drafters[slot] for i, slot in enumerate(slots) if slot in self._drafters}


class NoDrafter(Drafter):
    """Proposes nothing: regular decoding, through the same loop."""

    def begin(self, input_tokens: Sequence[int]) -> None:
        pass

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Sequence[int]:
        return ()


class CustomDrafter(Drafter):
    """Any object with `begin` and `propose`, which need know of nothing else."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter

    def begin(self, input_tokens: Sequence[int]) -> None:
        self._drafter.begin(input_tokens)

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft | Sequence[int]:
        found: Draft | Sequence[int] = self._drafter.propose(tokens, num_draft_tokens)
        return found


def in_slot(draft: Draft, slot: int, slots: int) -> Draft:
    """A draft of one row, in its place among all slots."""
    around = [(slot, slots - 1 - slot)]
    tokens = mx.pad(draft.tokens, [*around, (0, 0)])
    probs = None if draft.probs is None else mx.pad(draft.probs, [*around, (0, 0), (0, 0)])
    lengths = [0] * slots
    lengths[slot] = draft.length(0)
    return Draft(tokens, probs, lengths)
