"""The rows that are decoded together, what their rounds leave behind, and what a pass of the target is fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx

from ..draft_length.base import DraftLength
from ..drafters.base import BatchDrafter, Draft, Row
from ..models.base import EncoderDecoder
from ..models.cache import DecoderCache
from ..models.compiled import pass_width
from ..sampling import GenerationOptions
from .beam import BeamSearch

STRICT_TILE = 8  # positions


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

    width: of every pass of the target, from `strict_width`; None makes it wide enough for the longest draft.
    """

    model: EncoderDecoder
    drafter: BatchDrafter
    cache: DecoderCache
    rows: list[DecodedRow | None]
    width: int | None = None

    def __post_init__(self) -> None:
        self.drafter.share(self.cache)

    @property
    def active(self) -> list[DecodedRow]:
        return [row for row in self.rows if row is not None and not row.finish_reason]

    def fed(self, draft: Draft) -> mx.array:
        """(B, L) ids for the target: each row's last token and its draft. Padding follows, until the next rewind."""
        padding = self.model.config.pad_token_id
        last = mx.array([[padding if row is None else row.tokens[-1]] for row in self.rows], mx.uint32)
        width = self.width or pass_width(1 + draft.num_tokens)
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


def read_prefix(model: EncoderDecoder, cache: DecoderCache, row: DecodedRow) -> None:
    """Feed a forced prefix, all but its last token, with which rounds begin; the other rows stay. Lazy."""
    if row.given > 1:
        prefix, before = row.tokens[:-1], cache.offsets
        padding = [model.config.pad_token_id] * len(prefix)
        own = cache.rows_of(row.slot)
        model.states(mx.array([prefix if i in own else padding for i in range(cache.rows)]), cache)
        cache.trim_to([len(prefix) if i in own else offset for i, offset in enumerate(before)])


def strict_width(cache: DecoderCache, options: GenerationOptions, most_drafted: int, given: int = 1) -> int:
    """Strict mode: all passes have one shape, in queries and in keys, so that no kernel and no order of additions can
    differ between decoding with and without a draft. Reserves all of the cache, returns the width of a pass.

    Whole tiles only: matrix kernels add up the rows of a tile that is cut short in another order, and then a
    token's bits would depend on where in the pass it stands (docs/LOG.md, "Strict mode"). given: how many tokens stand
    at the beginning (`DecodedRow.given`); a row may be at its end while another reads so many.
    """
    width = -(-(most_drafted + 1) // STRICT_TILE) * STRICT_TILE
    cache.reserve(given - 1 + options.max_tokens + max(width, given - 1))
    return width
