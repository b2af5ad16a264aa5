"""Which tokens may not come, and which must, given what stands before a position; for all rows of a batch at once.

Those of Hugging Face's logits processors that set scores to -inf: `NoRepeatNGram`, `NoBadWords`, `SuppressTokens` and
`SuppressTokensAtBegin`, `MinLength` and `MinNewTokensLength`, `ForcedBOSToken` and `ForcedEOSToken` (transformers 5,
`generation/logits_process.py`). A position behind drafted tokens counts those too, though they are still on the device.

Shapes: B rows, L positions, V ids, T tokens of the longest row. A place is the number of tokens before a position,
start token and prefix among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

NOBODY = -1  # in front of a row that is shorter than others: no id


@dataclass(frozen=True)
class Constraints:
    """Of one output.

    no_repeat_ngram_size: no stretch of so many tokens comes twice; 0: they may. never: stretches of one token or more
    that do not come. early: (id, place): it does not come before this place. forced: (place, ids): one of these comes
    there, whatever else holds; for two of a place the later counts.
    """

    no_repeat_ngram_size: int = 0
    banned: tuple[tuple[int, ...], ...] = ()
    not_before: tuple[tuple[int, int], ...] = ()
    forced: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def forces(self, place: int) -> bool:
        return any(place == at for at, _ in self.forced)


class History(NamedTuple):
    """What stands before each position, for what looks back.

    tokens: the committed ids of each row. drafted: (B, N) ids behind them, lazy: the last position sees all of them,
    the position before it one less, and so on; None: there are none. constraints: of each row; (): there are none.
    """

    tokens: Sequence[Sequence[int]]
    drafted: mx.array | None = None
    constraints: Sequence[Constraints] = ()

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for tokens in self.tokens]

    def places(self, length: int) -> list[range]:
        """Of each row's `length` positions."""
        first = 1 - length + (0 if self.drafted is None else self.drafted.shape[1])
        return [range(count + first, count + first + length) for count in self.lengths]


def is_constrained(history: History, length: int) -> bool:
    """Whether any of the `length` positions is."""
    return any(
        own.no_repeat_ngram_size
        or own.banned
        or any(places.start < place for _, place in own.not_before)
        or any(at in places for at, _ in own.forced)
        for own, places in zip(history.constraints, history.places(length), strict=False)
    )


def constrain(logits: mx.array, history: History) -> mx.array:
    """(B, L, V): -inf for what may not come. Where nothing would be left, as for a draft that knows few tokens, nothing
    is taken away. Only what is forced comes, though it may not.
    """
    shape, vocab_size = logits.shape[:2], logits.shape[-1]
    if not is_constrained(history, shape[1]):
        return logits
    context = Context(history, shape[1])
    found = [*repeated(context, history, vocab_size), *never(context, history, vocab_size)]
    found += too_early(history, shape[1], vocab_size)
    if found:
        index = mx.concatenate([mx.broadcast_to(ids, (*shape, ids.shape[-1])) for ids in found], axis=-1)
        left = mx.where(among(index, vocab_size), -mx.inf, logits)
        logits = mx.where(left.max(axis=-1, keepdims=True) > -mx.inf, left, logits)
    return force(logits, history)


def among(ids: mx.array, vocab_size: int) -> mx.array:
    """(B, L, M) ids, V for none -> (B, L, V): whether it is one of them."""
    nothing = mx.zeros((*ids.shape[:2], vocab_size + 1), mx.bool_)
    return mx.put_along_axis(nothing, ids, mx.array(True), axis=-1)[..., :vocab_size]


class Context:
    """The ids of all rows as they stand before `length` positions, (B, N + T + D), each row's behind as many `NOBODY`
    as that takes, so that the rows end together; N: of the longest stretch.
    """

    def __init__(self, history: History, length: int) -> None:
        rows = history.constraints
        reach = max(max(own.no_repeat_ngram_size, *map(len, own.banned), 0) for own in rows)
        longest = reach + max(history.lengths)
        ids = [[*[NOBODY] * (longest - len(tokens)), *tokens] for tokens in history.tokens]
        self.ids = mx.array(ids, mx.int32)
        if history.drafted is not None and history.drafted.shape[1]:
            self.ids = mx.concatenate([self.ids, history.drafted.astype(mx.int32)], axis=1)
        self.length = length
        self.first = self.ids.shape[1] - length + 1  # ids before the first position; each further one has one more

    def ends_with(self, stretch: Iterable[mx.array]) -> mx.array | bool:
        """Ids (B, M) or (M,), one behind the other -> (B, L, M): whether they are the last ones before a position."""
        matches: mx.array | bool = True
        ids = list(stretch)
        for i, wanted in enumerate(ids, self.first - len(ids)):
            matches = (self.ids[:, i : i + self.length, None] == wanted[..., None, :]) & matches
        return matches


def repeated(context: Context, history: History, vocab_size: int) -> Iterator[mx.array]:
    """Ids that would end a stretch that came before, (B, L, M); V stands for none.

    A window of n tokens bans its last one where the n - 1 tokens before a position are those before it.
    """
    own_sizes = [own.no_repeat_ngram_size for own in history.constraints]
    for size in {*own_sizes} - {0}:
        count = context.ids.shape[1] - size + 1
        windows = [context.ids[:, i : i + count] for i in range(size)]
        ends = mx.arange(count) + size
        is_before = ends <= context.first + mx.arange(context.length)[:, None]
        has_it = mx.array([own == size for own in own_sizes])[:, None, None]
        matches = is_before & (windows[0] != NOBODY)[:, None] & has_it & context.ends_with(windows[:-1])
        yield mx.where(matches, windows[-1][:, None], vocab_size)


def never(context: Context, history: History, vocab_size: int) -> Iterator[mx.array]:
    """Ids that would end one of `never`, likewise."""
    for stretches in {own.banned for own in history.constraints} - {()}:
        has_it = mx.array([own.banned == stretches for own in history.constraints])[:, None, None]
        for size in {len(ids) for ids in stretches}:
            banned = mx.array([ids for ids in stretches if len(ids) == size], mx.int32)
            matches = has_it & context.ends_with(banned[:, i] for i in range(size - 1))
            yield mx.where(matches, banned[:, -1], vocab_size)


def too_early(history: History, length: int, vocab_size: int) -> Iterator[mx.array]:
    """Ids that may not come yet, likewise. Those that may by now cost nothing."""
    places = history.places(length)
    rows = [
        [(token, place) for token, place in own.not_before if at.start < place]
        for own, at in zip(history.constraints, places, strict=True)
    ]
    if most := max(map(len, rows)):
        filled = mx.array([[*pairs, *[(vocab_size, 0)] * (most - len(pairs))] for pairs in rows])  # (B, M, 2)
        at = mx.array([[*each] for each in places])[..., None]
        yield mx.where(at < filled[:, None, :, 1], filled[:, None, :, 0], vocab_size)


def force(logits: mx.array, history: History) -> mx.array:
    """(B, L, V): 0 for what is forced at a place and -inf for all else there."""
    vocab_size = logits.shape[-1]
    forced = [
        [dict(own.forced).get(place, ()) for place in places]
        for own, places in zip(history.constraints, history.places(logits.shape[1]), strict=True)
    ]
    most = max(len(ids) for row in forced for ids in row)
    if not most:
        return logits
    index = mx.array([[[*ids, *[vocab_size] * (most - len(ids))] for ids in row] for row in forced])
    is_forced = mx.array([[bool(ids) for ids in row] for row in forced])[..., None]
    return mx.where(is_forced, mx.where(among(index, vocab_size), 0.0, -mx.inf).astype(logits.dtype), logits)
