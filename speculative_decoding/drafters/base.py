"""What a drafter is, and what it hands over. Knows nothing of acceptance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

import mlx.core as mx

MODEL, COPY, GUESS = "model", "copy", "guess"  # kinds of draft, see `Drafter.kind`; a guess is an unlikely copy


@dataclass(frozen=True)
class Draft:
    """K proposed tokens for each row, still lazy.

    tokens: (B, K) ids.
    probs: (B, K, V) float32, the distributions the tokens were really sampled from; None means a point mass
        (the drafter was certain). Anything else here would bias the output.
    lengths: (B,) how many of the K count in each row; None means all.
    """

    tokens: mx.array
    probs: mx.array | None = None
    lengths: mx.array | None = None

    @classmethod
    @cache
    def empty(cls, batch: int = 1) -> Draft:
        return cls(mx.zeros((batch, 0), mx.uint32))

    @property
    def num_tokens(self) -> int:
        return self.tokens.shape[1]

    def after(self, token: int, width: int, padding: int) -> mx.array:
        """(1, width): the last committed token, the draft behind it and padding, as the target reads them."""
        fill = width - 1 - self.num_tokens
        if not self.num_tokens:
            return mx.array([[token] + [padding] * fill], self.tokens.dtype)
        parts = [mx.array([[token]], self.tokens.dtype), self.tokens]
        return mx.concatenate([*parts, mx.full((1, fill), padding, self.tokens.dtype)] if fill else parts, axis=1)

    def behind(self, tokens: Sequence[int]) -> mx.array:
        """(B, N + K): the N committed ids and the draft behind them."""
        committed = mx.broadcast_to(mx.array(list(tokens), self.tokens.dtype), (self.tokens.shape[0], len(tokens)))
        return mx.concatenate([committed, self.tokens], axis=1) if self.num_tokens else committed


class Drafter(ABC):
    """Proposes tokens. It sees every committed token and keeps its own state in step with them; there is no call to
    rewind it. It may stop after any token, but never withdraw one that it sampled (that would bias the output).
    """

    top_k = 0  # how many of the target's likeliest ids at each place it wants to `learn`

    @abstractmethod
    def begin(self, input_tokens: Sequence[int]) -> None:
        """A new request: the ids that the encoder reads."""

    @abstractmethod
    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        """Up to `num_draft_tokens` ids to follow `tokens`, the decoder ids committed so far (start token first)."""

    def end(self, tokens: Sequence[int]) -> None:  # noqa: B027  # most have nothing to do
        """The request is over; `tokens` is all it wrote, start token first. Not called for one that is abandoned."""

    def kind(self, tokens: Sequence[int]) -> str:
        """Which kind of draft would follow `tokens`. Kinds differ in what they cost and in how often they are right, so
        their lengths are decided apart.
        """
        return ""

    def learn(self, tokens: Sequence[int], likeliest: Sequence[Sequence[int]]) -> None:
        """After a round, if `top_k` is not 0: the target's `top_k` likeliest ids at the places of the last committed
        tokens, those of the round.
        """
        raise NotImplementedError


class NoDrafter(Drafter):
    """Proposes nothing: regular decoding, through the same loop."""

    def begin(self, input_tokens: Sequence[int]) -> None:
        pass

    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft:
        return Draft.empty()


def token_ids(tokens: mx.array) -> list[int]:
    """(1, K) -> Python integers. Waits for the device unless the array has been evaluated."""
    (row,) = cast(list[list[int]], tokens.tolist())
    return row
