"""Drafts for the rows of a batch. A row keeps its slot while its request lasts; a single request is slot 0."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..sampling import SamplingParams
from .base import Draft, Drafter


@dataclass(frozen=True)
class Asked:
    """What the loop asks for the row in a slot: up to `num_draft_tokens` ids to follow `tokens`, the committed ones."""

    slot: int
    tokens: Sequence[int]
    num_draft_tokens: int
    kind: str = ""


class BatchDrafter(ABC):
    """Proposes for several rows at once; of each it knows what a `Drafter` knows."""

    def read(self, sources: Sequence[Sequence[int]]) -> list[Any]:
        """What `begin` is to be told of each request; they will get slots soon. A chance to encode them together."""
        return [None] * len(sources)

    @abstractmethod
    def begin(self, slot: int, source: Sequence[int], reading: Any, sampling: SamplingParams, *, coupled: bool) -> None:
        """A new request in this slot, decoded with these settings; coupled: with the noise of each position."""

    @abstractmethod
    def propose(self, asked: Sequence[Asked]) -> list[Draft]:
        """A draft of one row for each of the `asked`, all of which are to have one."""

    def end(self, slot: int, tokens: Sequence[int]) -> None:  # noqa: B027  # most have nothing to do
        """See `Drafter.end`."""

    @abstractmethod
    def select(self, slots: Sequence[int]) -> None:
        """Fewer rows from now on: slot i is what was slot `slots[i]`."""

    def kinds(self, slot: int, tokens: Sequence[int]) -> Sequence[str]:
        """See `Drafter.kind`: all those that could follow, at least one; the first where nobody knows better."""
        return ("",)

    def top_k(self, slot: int) -> int:
        """See `Drafter.top_k`."""
        return 0

    def learn(self, slot: int, tokens: Sequence[int], likeliest: Sequence[Sequence[int]]) -> None:
        """See `Drafter.learn`."""
        raise NotImplementedError


class SeparateDrafters(BatchDrafter):
    """A drafter of its own for each row, made anew for each request; what they share is up to them."""

    def __init__(self, make: Callable[[SamplingParams, bool], Drafter]) -> None:
        """make(sampling, coupled) -> Drafter."""
        self._make = make
        self._drafters: dict[int, Drafter] = {}

    def begin(self, slot: int, source: Sequence[int], reading: Any, sampling: SamplingParams, *, coupled: bool) -> None:
        self._drafters[slot] = self._make(sampling, coupled)
        self._drafters[slot].begin(source)

    def propose(self, asked: Sequence[Asked]) -> list[Draft]:
        drafts = [self._drafters[each.slot].propose(each.tokens, each.num_draft_tokens) for each in asked]
        return [draft if isinstance(draft, Draft) else Draft(mx.array([draft], mx.uint32)) for draft in drafts]

    def select(self, slots: Sequence[int]) -> None:
        self._drafters = {i: self._drafters[slot] for i, slot in enumerate(slots)}

    def end(self, slot: int, tokens: Sequence[int]) -> None:
        self._drafters[slot].end(tokens)

    def kinds(self, slot: int, tokens: Sequence[int]) -> Sequence[str]:
        return (self._drafters[slot].kind(tokens),)

    def top_k(self, slot: int) -> int:
        return getattr(self._drafters[slot], "top_k", 0)

    def learn(self, slot: int, tokens: Sequence[int], likeliest: Sequence[Sequence[int]]) -> None:
        self._drafters[slot].learn(tokens, likeliest)
