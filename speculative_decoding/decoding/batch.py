"""The rows that are decoded together, what their rounds leave behind, and what a pass of the target is fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx

from ..draft_length.base import DraftLength
from ..draft_length.passes import UNPADDED, PassWidths
from ..drafters.base import BatchDrafter, Draft, Row
from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from .beam import BeamSearch


@dataclass(eq=False)
class DecodedRow(Row):
    """One request while it is decoded.

    length: how many tokens are drafted for it; rows may share one, which then learns from them all.
    ends: is shown every new token and says whether it is the last; the `max_tokens`-th is in any case.
    search: of its beams, where there are several; the tokens are committed when it is over.
    given: how many of the tokens (the start token, a forced prefix) were not generated.
    finish_reason: "stop" at an end-of-sequence token or a stop string, "length" at max_tokens, "error" where the
        target's logits are not finite, None while there is more to come.
    """

    length: DraftLength = field(kw_only=True)
    ends: Callable[[int], bool] = field(kw_only=True)
    search: BeamSearch | None = field(kw_only=True, default=None)
    given: int = field(init=False)
    finish_reason: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.given = len(self.tokens)

    @property
    def read(self) -> int:
        """How many tokens the target is to have read before the next pass: all but the last."""
        return len(self.tokens if self.search is None else self.search.beams[0]) - 1

    @property
    def room(self) -> int:
        """How many tokens may yet come."""
        return self.options.max_tokens - (len(self.tokens) - self.given)

    def commit(self, new: list[int]) -> list[int]:
        """Take the new tokens up to the one that ends the output, which stays; returns those."""
        self.finish_reason = "length" if len(new) == self.room else None
        for i, token in enumerate(new):
            if self.ends(token):
                new = new[: i + 1]
                self.finish_reason = self.reason_of_end(len(self.tokens) - self.given + len(new))
                break
        self.tokens += new
        return new

    def reason_of_end(self, length: int) -> str:
        """The finish_reason of so many tokens with an end: one that was forced, in the last place, says nothing."""
        is_cut = length == self.options.max_tokens and self.constraints.forces(self.given + length - 1)
        return "length" if is_cut else "stop"


@dataclass
class Batch:
    """rows: one for each slot, None where it is free; between two rounds the caller may give a slot to another request.
    The cache holds all tokens of each row but the last, and the drafter has begun each row.

    widths: that passes of the target may have; padding fills them up.
    """

    model: EncoderDecoder
    drafter: BatchDrafter
    cache: DecoderCache
    rows: list[DecodedRow | None]
    widths: PassWidths = UNPADDED

    def __post_init__(self) -> None:
        self.drafter.share(self.cache)

    @property
    def active(self) -> list[DecodedRow]:
        return [row for row in self.rows if row is not None and not row.finish_reason]

    @property
    def most_drafted(self) -> int:
        """The longest draft for which there is a pass."""
        return self.widths.max_width(len(self.rows)) - 1

    def fed(self, draft: Draft) -> mx.array:
        """(B, L) ids for the target: each row's last token and its draft. Padding follows, until the next rewind."""
        padding = self.model.config.pad_token_id
        last = mx.array([[padding if row is None else row.tokens[-1]] for row in self.rows], mx.uint32)
        width = self.widths.width(len(self.rows), 1 + draft.num_tokens)
        if width == 1:
            return last
        parts = [last, draft.tokens]
        if fill := width - 1 - draft.num_tokens:
            parts.append(mx.full((len(self.rows), fill), padding, mx.uint32))
        return mx.concatenate(parts, axis=1)

    def rewind(self) -> None:
        """Each row keeps all its committed tokens but the last; nobody counts what was rejected."""
        kept = [0 if row is None else row.read for row in self.rows]
        self.cache.trim_to([each for each in kept for _ in range(self.cache.beams)])


def read_prefix(batch: Batch, row: DecodedRow) -> None:
    """Feed a forced prefix, all but its last token, with which rounds begin; the other rows stay. Lazy."""
    model, cache, before = batch.model, batch.cache, batch.cache.offsets
    own, prefix, padding = cache.rows_of(row.slot), row.tokens[:-1], model.config.pad_token_id
    for start, count, width in batch.widths.chunks(len(batch.rows), len(prefix)):
        ids = prefix[start : start + count] + [padding] * (width - count)
        model.states(mx.array([ids if i in own else [padding] * width for i in range(cache.rows)]), cache)
        cache.trim_to([start + count if i in own else offset for i, offset in enumerate(before)])
