"""Drafters that know one row, side by side for the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Generic, TypeVar

from .base import BatchDrafter, Draft, Drafter, Row, Wanted, merged

OfRow = TypeVar("OfRow", bound=Drafter)


class SeparateDrafters(BatchDrafter, Generic[OfRow]):
    """A drafter of its own for each request; what they share is up to them.

    make: gives one for a request. vocab_size: V, of drafts that bring distributions.
    """

    def __init__(self, make: Callable[[], OfRow], vocab_size: int | None = None) -> None:
        self._make, self._vocab_size = make, vocab_size
        self._drafters: dict[int, OfRow] = {}

    def begin(self, row: Row) -> None:
        self._drafters[row.slot] = self._make()
        self._drafters[row.slot].begin(row.source)

    def of(self, row: Row) -> OfRow:
        return self._drafters[row.slot]

    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        ids: list[Sequence[int]] = [()] * slots
        drafts: dict[int, Draft] = {}
        for each in wanted:
            found = self.of(each.row).propose(each.row.tokens, each.count)
            if isinstance(found, Draft):
                drafts[each.row.slot] = found
            else:
                ids[each.row.slot] = [*takewhile(self._is_known, found)]
        whole = Draft.certain(ids)
        for slot, draft in drafts.items():
            whole = merged(whole, draft, (slot,), self._vocab_size)
        return whole

    def _is_known(self, token: int) -> bool:
        """A store or a drafter of the caller's may hold ids that the target does not have."""
        return token >= 0 and (self._vocab_size is None or token < self._vocab_size)

    def kind(self, row: Row) -> str:
        return self.of(row).kind

    def longest(self, row: Row, kind: str) -> int:
        return self.of(row).longest(row.tokens)

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
