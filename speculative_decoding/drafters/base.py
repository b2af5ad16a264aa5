"""What a drafter is, what it sees of a request, and what it hands over. Knows nothing of acceptance."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

import mlx.core as mx

from ..models.cache import DecoderCache
from ..sampling import Constraints, GenerationOptions, History

MODEL, COPY = "model", "copy"  # kinds of draft, see `BatchDrafter.kind`


@dataclass(eq=False)
class Row:
    """One request while it is decoded, as drafters and acceptance rules see it.

    slot: its place in the batch, as long as it lasts; a single request has slot 0.
    source: the ids that the encoder reads. tokens: the committed decoder ids, start token first.
    constraints: which tokens may come; drafts keep to them too.
    encoder_output: the target's, (1, S, d_model), set while a drafter begins the row.
    """

    options: GenerationOptions
    source: list[int]
    tokens: list[int]
    slot: int = 0
    constraints: Constraints = field(default_factory=Constraints)
    encoder_output: mx.array | None = None


def history_of(rows: Sequence[Row], drafted: mx.array | None = None) -> History:
    """What stands before each position behind the rows' tokens and their drafts, (B, N)."""
    return History([row.tokens for row in rows], drafted, [row.constraints for row in rows])


@dataclass(frozen=True)
class Wanted:
    """A row that is to have a draft: of which kind, and of how many tokens at most (at least 1)."""

    row: Row
    count: int
    kind: str = ""


@dataclass(frozen=True)
class Draft:
    """Up to K proposed tokens for each slot of a batch, still lazy.

    tokens: (B, K) ids.
    probs: (B, K, V) float32, the distributions the tokens were really sampled from; None means a point mass
        (the drafter was certain). Anything else here would bias the output.
    lengths: how many of the K count in each row; None means all.
    """

    tokens: mx.array
    probs: mx.array | None = None
    lengths: Sequence[int] | None = None

    @classmethod
    @cache
    def empty(cls, rows: int = 1) -> Draft:
        return cls(mx.zeros((rows, 0), mx.uint32))

    @classmethod
    def certain(cls, rows: Sequence[Sequence[int]]) -> Draft:
        """Tokens that were looked up, of any length for each slot."""
        lengths = [len(ids) for ids in rows]
        longest = max(lengths)
        return cls(mx.array([[*ids, *[0] * (longest - len(ids))] for ids in rows], mx.uint32), lengths=lengths)

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def num_tokens(self) -> int:
        """K."""
        return self.tokens.shape[1]

    def length(self, slot: int) -> int:
        return self.num_tokens if self.lengths is None else self.lengths[slot]

    @cached_property
    def length_array(self) -> mx.array | None:
        """(B,), or None where all K count in every row."""
        is_ragged = self.lengths is not None and min(self.lengths) < self.num_tokens
        return mx.array(list(self.lengths or ())) if is_ragged else None

    def select(self, slots: Sequence[int]) -> Draft:
        """The draft of these slots alone."""
        index = mx.array(list(slots))
        return Draft(
            mx.take(self.tokens, index, axis=0),
            None if self.probs is None else mx.take(self.probs, index, axis=0),
            None if self.lengths is None else [self.lengths[slot] for slot in slots],
        )


class Verified(NamedTuple):
    """What the target's pass of a round left for those who learn from it; lazy, but for `counts`.

    states: (B, L, d) what its head read. counts: how many new tokens each row has, by slot; position i of a row belongs
    to its i-th new token. Rows whose logits were not finite are not among them.
    """

    states: mx.array
    counts: dict[int, int]


class BatchDrafter(ABC):
    """Proposes tokens for all rows of a batch. It sees the committed tokens of a row whenever that is to have a draft
    and keeps its own state in step with them; there is no call to rewind it. It may stop after any token, but never
    withdraw one that it sampled (that would bias the output).
    """

    def share(self, cache: DecoderCache) -> None:  # noqa: B027
        """Before anything else: the target's cache, with a row for each slot. To be read; it may be asked to keep the
        states of some layers.
        """

    @abstractmethod
    def begin(self, row: Row) -> None:
        """A new request has `row.slot`."""

    @abstractmethod
    def propose(self, wanted: Sequence[Wanted], slots: int) -> Draft:
        """A draft for the rows in `wanted`; slots: B, how many rows the draft has in all."""

    def kind(self, row: Row) -> str:
        """Which kind of draft would follow the row's tokens. Kinds differ in what they cost and in how often they are
        right, so their lengths are decided apart.
        """
        return ""

    def longest(self, row: Row, kind: str) -> int:
        """The longest draft of this kind that could follow the row's tokens, where that is known before it is made."""
        return sys.maxsize

    def observe(self, rows: Sequence[Row], verified: Verified) -> None:  # noqa: B027  # most have nothing to do
        """After a pass by which these rows' tokens were committed, and before any other."""

    def end(self, row: Row) -> None:  # noqa: B027
        """The request is over; `row.tokens` is all it wrote. Not called for one that is cancelled."""

    @abstractmethod
    def select(self, slots: Sequence[int]) -> None:
        """Other slots from now on: slot i is what was slot `slots[i]`."""


class Drafter(ABC):
    """Proposes tokens for one row, of which it sees ids alone; otherwise like `BatchDrafter`."""

    kind = ""

    @abstractmethod
    def begin(self, input_tokens: Sequence[int]) -> None:
        """A new request: the ids that the encoder reads."""

    @abstractmethod
    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft | Sequence[int]:
        """Up to `num_draft_tokens` ids to follow `tokens`, the decoder ids committed so far (start token first): ids of
        which it is certain, or a `Draft` of one row.
        """

    def longest(self, tokens: Sequence[int]) -> int:
        """How many ids `propose` would give at most, where that is known before."""
        return sys.maxsize

    def end(self, tokens: Sequence[int]) -> None:  # noqa: B027
        """The request is over; `tokens` is all it wrote, start token first. Not called for one that is cancelled."""


def token_rows(tokens: mx.array) -> list[list[int]]:
    """(B, K) -> Python integers. Waits for the device unless the array has been evaluated."""
    return tokens.tolist()  # type: ignore[return-value]


def padded(array: mx.array, length: int) -> mx.array:
    """(B, K, ...) -> (B, length, ...), zeros behind."""
    missing = length - array.shape[1]
    return mx.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)]) if missing else array


def merged(first: Draft, second: Draft, slots: Collection[int], vocab_size: int | None = None) -> Draft:
    """The second draft in these slots, the first in all others. A second draft of one row stands for each of them.

    vocab_size: V; needed where one of them has distributions and the other is certain.
    """
    if not second.num_tokens:
        return first
    if not first.num_tokens and first.rows == second.rows:
        return second
    longest = max(first.num_tokens, second.num_tokens)
    mine = mx.array([slot in slots for slot in range(first.rows)])[:, None]
    tokens = mx.where(mine, padded(second.tokens, longest), padded(first.tokens, longest))
    probs = None
    if first.probs is not None or second.probs is not None:
        theirs, ours = (padded(draft_probs(each, vocab_size), longest) for each in (first, second))
        probs = mx.where(mine[..., None], ours, theirs)
    lengths = [first.length(slot) for slot in range(first.rows)]
    for slot in slots:
        lengths[slot] = second.length(slot if second.rows > 1 else 0)
    return Draft(tokens, probs, lengths)


def draft_probs(draft: Draft, vocab_size: int | None) -> mx.array:
    """q in full, (B, K, V) float32, also where it is a point mass."""
    if draft.probs is not None:
        return draft.probs
    assert vocab_size is not None
    return (mx.arange(vocab_size) == draft.tokens[..., None]).astype(mx.float32)
