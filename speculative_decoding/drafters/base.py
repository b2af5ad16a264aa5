"""The drafter interface: views of requests, drafts, and the base classes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

import mlx.core as mx

from ..errors import InputError
from ..models.cache import DecoderCache
from ..models.source import Source, token_ids
from ..sampling import Constraints, GenerationOptions, History
from ..sampling.options import short_repr

if TYPE_CHECKING:
    from .draft_text import DraftText, Place

Value = TypeVar("Value")

# Kinds of draft (see `BatchDrafter.kind_and_limit`): from a draft model or head; copied from the source, the output or
# a store; from text given with the request; from a translation memory; and from a user's drafter
MODEL, COPY, TEXT, MEMORY, CUSTOM = "model", "copy", "text", "memory", "custom"


class Follower(Protocol):
    """Follows one output through a text, like `draft_text.TextFollower`."""

    @property
    def text(self) -> DraftText: ...

    def append(self, token: int) -> None: ...

    def find(self) -> Place | None: ...

    def continuation(self, place: Place, count: int) -> list[int]: ...


class Followable(Protocol):
    """A text that outputs may resemble, such as a `draft_text.DraftText`."""

    def follow(self, prefix: Iterable[int] = ()) -> Follower: ...


@dataclass(eq=False)
class RequestView:
    """The part of a request that drafters and acceptance rules read.

    Args:
        options: The request's options, with the model's defaults filled in.
        source: The encoder's input.
        decoder_tokens: The committed decoder ids: the start token, a forced prefix, and the output so far.
        slot: The row of the batch that the request occupies.
        constraints: The constraints on the output, which also apply to drafts.
        draft_texts: Texts that the output may resemble.
    """

    options: GenerationOptions
    source: Source
    decoder_tokens: list[int]
    slot: int = 0
    constraints: Constraints = field(default_factory=Constraints)
    draft_texts: Sequence[Followable] = ()

    @property
    def source_tokens(self) -> Sequence[int]:
        """The ids of the source; empty for audio."""
        return token_ids(self.source)


def token_history(requests: Sequence[RequestView], drafted: mx.array | None = None) -> History:
    """The tokens before each position (committed tokens, then draft tokens (B, N)), and the constraints."""
    return History(
        [request.decoder_tokens for request in requests], drafted, [request.constraints for request in requests]
    )


@dataclass(frozen=True)
class Draft:
    """Up to K draft tokens for each slot of a batch, as lazy arrays.

    Args:
        tokens: (B, K) ids.
        probs: (B, K, V) float32, the distributions that the tokens were sampled from. None means that each token had
            probability 1. Incorrect probabilities would bias the output.
        lengths: The number of draft tokens in each row; None means K in every row.

    Raises:
        InputError: `tokens` or `probs` is not an array of this shape.
    """

    tokens: mx.array
    probs: mx.array | None = None
    lengths: Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name, array, shape in (("tokens", self.tokens, "(rows, K)"), ("probs", self.probs, "(rows, K, V)")):
            is_array = isinstance(array, mx.array) and array.ndim == shape.count(",") + 1
            if not is_array and (array is not None or name == "tokens"):
                raise InputError(
                    f"Draft: {name} must be an mlx array of shape {shape}, not {short_repr(array)}; "
                    "for tokens that were not sampled, return a list of ids in place of a Draft"
                )

    @classmethod
    @cache
    def empty(cls, rows: int = 1) -> Draft:
        return cls(mx.zeros((rows, 0), mx.uint32))

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]]) -> Draft:
        """Create a draft of tokens that were looked up rather than sampled."""
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

    def to_lists(self) -> list[list[int]]:
        """Return each row's draft tokens as ids on the host. Waits for the device unless they are already evaluated."""
        rows: list[list[int]] = self.tokens.tolist()  # type: ignore[assignment]
        return rows if self.lengths is None else [row[:end] for row, end in zip(rows, self.lengths, strict=True)]

    @cached_property
    def length_array(self) -> mx.array | None:
        """(B,), or None if every row has K tokens."""
        is_ragged = self.lengths is not None and min(self.lengths) < self.num_tokens
        return mx.array(list(self.lengths or ())) if is_ragged else None

    def first(self, count: int) -> Draft:
        """The first `count` draft tokens of each row."""
        if self.num_tokens <= count:
            return self
        probs = None if self.probs is None else self.probs[:, :count]
        lengths = None if self.lengths is None else [min(length, count) for length in self.lengths]
        return Draft(self.tokens[:, :count], probs, lengths)

    def select(self, slots: Sequence[int]) -> Draft:
        """The draft for these slots only."""
        index = mx.array(list(slots))
        return Draft(
            mx.take(self.tokens, index, axis=0),
            None if self.probs is None else mx.take(self.probs, index, axis=0),
            None if self.lengths is None else [self.lengths[slot] for slot in slots],
        )


class BatchDrafter(ABC):
    """Proposes tokens for all rows of a batch.

    Every call of `propose` passes each request's committed tokens. The drafter synchronizes its state with them, so no
    rollback call is needed. It may end a draft after any token, but must not withdraw a token that it sampled, because
    that would bias the output.
    """

    def use_cache(self, cache: DecoderCache) -> None:  # noqa: B027
        """Receive the target's cache before any other call. The drafter may only set the cache's `recorded_layers`."""

    @abstractmethod
    def begin(self, request: RequestView, encoder_output: mx.array | None = None) -> None:
        """Start a new request in `request.slot`.

        Args:
            request: The new request.
            encoder_output: (1, S, d_model), the target's encoder output for the request; None if not available.
        """

    def kind_and_limit(self, request: RequestView) -> tuple[str, int]:
        """Return the kind of the request's next draft, and the draft's maximum length if it is known before drafting.

        Kinds differ in cost and acceptance rate, so their draft lengths are chosen separately. `propose` is then
        called with the chosen lengths, unless no draft is worthwhile.
        """
        return CUSTOM, sys.maxsize

    @abstractmethod
    def propose(self, counts: Mapping[RequestView, int], slots: int) -> Draft:
        """Return a draft with `slots` rows. Rows without a request in `counts` stay empty.

        counts: The maximum number of tokens to draft for each request, at least 1.
        """

    def observe(self, requests: Sequence[RequestView], counts: Sequence[int]) -> None:  # noqa: B027
        """Called after a round in which `requests[i]` committed `counts[i]` tokens, before the target's next pass.

        The hidden state from which a draft head drafts next is at position `counts[i] - 1` of the target's last pass.
        """

    def end(self, request: RequestView) -> None:  # noqa: B027
        """Called when `request.decoder_tokens` is complete, but not for cancelled requests."""

    @abstractmethod
    def select(self, slots: Sequence[int]) -> None:
        """Renumber the slots: new slot i is old slot `slots[i]`."""


class Drafter(ABC):
    """Proposes tokens for one request, based only on its token ids; see `BatchDrafter`.

    Attributes:
        kind: The kind under which statistics count the drafts.
    """

    kind = CUSTOM

    @abstractmethod
    def begin(self, input_tokens: Sequence[int]) -> None:
        """Start a new request with these source tokens."""

    @abstractmethod
    def propose(self, tokens: Sequence[int], num_draft_tokens: int) -> Draft | Sequence[int]:
        """Propose up to `num_draft_tokens` tokens that may follow `tokens`.

        Args:
            tokens: The committed decoder ids, beginning with the start token.
            num_draft_tokens: The maximum length.

        Returns:
            Ids that were not sampled, or a `Draft` with one row.
        """

    def longest(self, tokens: Sequence[int]) -> int:
        """Return the maximum length of the next draft, if it is known before drafting."""
        return sys.maxsize

    def end(self, tokens: Sequence[int]) -> None:  # noqa: B027
        """Called with all decoder ids of a finished request, but not for cancelled requests."""


def is_drafter(value: object) -> bool:
    """Whether a value has a `Drafter`'s methods, or is a class with these methods."""
    return all(callable(getattr(value, name, None)) for name in ("begin", "propose"))


def makes_drafters(value: object) -> bool:
    """Whether a value is a class or function that creates a drafter for each request."""
    return isinstance(value, type) if is_drafter(value) else callable(value) and not isinstance(value, type)


def num_shared(held: Sequence[int], tokens: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    shortest = min(len(held), len(tokens))
    return next((i for i in range(shortest) if held[i] != tokens[i]), shortest)


def renumbered(by_slot: Mapping[int, Value], slots: Sequence[int]) -> dict[int, Value]:
    """Return the values keyed by their slots after `BatchDrafter.select`: new slot i is old slot `slots[i]`."""
    return {i: by_slot[slot] for i, slot in enumerate(slots) if slot in by_slot}


def padded(array: mx.array, length: int) -> mx.array:
    """(B, K, ...) -> (B, length, ...), padded with zeros."""
    missing = length - array.shape[1]
    return mx.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)]) if missing else array


def merged(first: Draft, second: Draft, slots: Collection[int], vocab_size: int | None = None) -> Draft:
    """Take `slots` from the second draft and all other rows from the first.

    Args:
        first: A draft of B rows.
        second: A draft of B rows, or of one row that is used for each of `slots`.
        slots: The rows to take from `second`.
        vocab_size: V; required if only one of the drafts has distributions.
    """
    if not second.num_tokens:
        return first
    if not first.num_tokens and first.rows == second.rows:
        return second
    longest = max(first.num_tokens, second.num_tokens)
    is_second = mx.array([slot in slots for slot in range(first.rows)])[:, None]
    tokens = mx.where(is_second, padded(second.tokens, longest), padded(first.tokens, longest))
    probs = None
    if first.probs is not None or second.probs is not None:
        first_probs, second_probs = (padded(draft_probs(each, vocab_size), longest) for each in (first, second))
        probs = mx.where(is_second[..., None], second_probs, first_probs)
    lengths = [first.length(slot) for slot in range(first.rows)]
    for slot in slots:
        lengths[slot] = second.length(slot if second.rows > 1 else 0)
    return Draft(tokens, probs, lengths)


def draft_probs(draft: Draft, vocab_size: int | None) -> mx.array:
    """Return the draft distributions q, (B, K, V) float32, as a full array even for point masses."""
    if draft.probs is not None:
        return draft.probs
    assert vocab_size is not None
    return (mx.arange(vocab_size) == draft.tokens[..., None]).astype(mx.float32)
