"""Runs one drafter per row of a batch. Callers can write such drafters, each of which handles a single request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Generic, TypeVar

import mlx.core as mx

from ..errors import InputError
from ..sampling.options import short_repr
from .base import CUSTOM, BatchDrafter, Draft, Drafter, RequestView, is_drafter, makes_drafters, merged, renumbered

OneDrafter = TypeVar("OneDrafter", bound=Drafter)


class SeparateDrafters(BatchDrafter, Generic[OneDrafter]):
    """Creates a separate drafter for each request.

    Args:
        make: Returns a drafter for a new request.
        vocab_size: V, required for drafters that return distributions. A draft ends before the first id >= V.
    """

    def __init__(self, make: Callable[[], OneDrafter], vocab_size: int | None = None) -> None:
        self._make = make
        self._vocab_size = vocab_size
        self._drafters: dict[int, OneDrafter] = {}  # by slot

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        drafter = self._make()
        drafter.begin(request.source_tokens)
        self._drafters[request.slot] = drafter

    def of(self, request: RequestView) -> OneDrafter:
        return self._drafters[request.slot]

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        ids: list[Sequence[int]] = [()] * slots
        drafts: dict[int, Draft] = {}
        for request, count in counts.items():
            found = self.of(request).propose(request.decoder_tokens, count)
            if isinstance(found, Draft):
                drafts[request.slot] = found.first(count)
            else:
                ids[request.slot] = [*takewhile(self._is_known, islice(found, count))]

        draft = Draft.from_lists(ids)
        for slot, own in drafts.items():
            draft = merged(draft, own, (slot,), self._vocab_size)
        return draft

    def _is_known(self, token: int) -> bool:
        """Whether the target's vocabulary contains this id. A caller's drafter may return others."""
        return token >= 0 and (self._vocab_size is None or token < self._vocab_size)

    def kind_and_limit(self, request: RequestView) -> tuple[str, int]:
        drafter = self.of(request)
        return drafter.kind, drafter.longest(request.decoder_tokens)

    def end(self, request: RequestView) -> None:
        self.of(request).end(request.decoder_tokens)

    def select(self, slots: Sequence[int]) -> None:
        self._drafters = renumbered(self._drafters, slots)


class CustomDrafter(Drafter):
    """Wraps any object that has `begin` and `propose` methods."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self.kind = getattr(drafter, "kind", CUSTOM)

    def begin(self, input_tokens: Sequence[int]) -> None:
        self._drafter.begin(input_tokens)

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft | Sequence[int]:
        found: Draft | Sequence[int] = self._drafter.propose(tokens, num_draft_tokens)
        return found


def custom_drafter(drafter: Any, vocab_size: int) -> BatchDrafter:
    """Build a batch's drafter from a caller's drafter.

    drafter: a `BatchDrafter` or its class; a drafter for one request at a time; or a class or function that creates
        such a drafter for each request.
    """
    if isinstance(drafter, type) and issubclass(drafter, BatchDrafter):
        drafter = drafter()
    if isinstance(drafter, BatchDrafter):
        return drafter
    make = drafter if makes_drafters(drafter) else lambda: drafter
    return SeparateDrafters(lambda: wrapped(make()), vocab_size)


def wrapped(drafter: Any) -> Drafter:
    """Return a caller's drafter as a `Drafter`."""
    if isinstance(drafter, Drafter):
        return drafter
    if isinstance(drafter, type) or not is_drafter(drafter):
        raise InputError(f"must return an object that has begin and propose, not {short_repr(drafter)}", "drafter")
    return CustomDrafter(drafter)
