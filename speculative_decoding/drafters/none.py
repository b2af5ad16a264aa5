"""A drafter that proposes nothing, for baseline decoding in the same loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx

from .base import BatchDrafter, Draft, RequestView


class NoDrafter(BatchDrafter):
    """Returns drafts without tokens."""

    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        pass

    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        return Draft.empty(slots)

    def select(self, slots: Sequence[int]) -> None:
        pass


def build(ngram: object, model: object, vocab_size: int) -> BatchDrafter:
    return NoDrafter()
