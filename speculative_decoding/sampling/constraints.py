"""Constraints on the next token, given the tokens before it, for all rows of a batch at once.

These are the logits processors of Hugging Face that set scores to -inf: `NoRepeatNGram`, `NoBadWords`,
`SuppressTokens`, `SuppressTokensAtBegin`, `MinLength`, `MinNewTokensLength`, `ForcedBOSToken` and `ForcedEOSToken`
(transformers 5, `generation/logits_process.py`), and openai-whisper's `ApplyTimestampRules`. At a position after draft
tokens, these tokens count too, although they are still on the device.

Shapes: B rows, L positions, V ids, T tokens of the longest row. A position is numbered by the tokens before it,
including the start token and the prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import mlx.core as mx

PADDING = -1  # fills shorter rows on the left; not an id


@dataclass(frozen=True)
class TimestampRules:
    """Timestamps frame the segments of a transcript (openai-whisper 20250625, `ApplyTimestampRules`).

    - The first token is a timestamp, at most `max_initial`.
    - After a text and its timestamp, the output ends or the next segment starts with a timestamp; text follows it.
    - Timestamps do not decrease, and a segment does not end when it starts.
    - If all timestamps together are more likely than every other token, a timestamp follows. This compares
      probabilities after all other constraints, at temperature 1.

    Args:
        begin: The position of the first token that is generated. Earlier tokens, such as previous text, do not count.
        text_end: Ids below are text.
        zero: The id of timestamp 0. This id and the following ones are timestamps, in order.
        max_initial: The highest id of the first timestamp; None allows all.
        added_from: The first id after the timestamps. It and all higher ones are text, too. None: there are none.
    """

    begin: int
    text_end: int
    zero: int
    max_initial: int | None = None
    added_from: int | None = None

    def is_timestamp(self, token: int) -> bool:
        return token >= self.zero and (self.added_from is None or token < self.added_from)


@dataclass(frozen=True)
class Constraints:
    """The constraints on one output.

    Args:
        no_repeat_ngram_size: No n-gram of this size occurs twice; 0 allows repeats.
        banned: Sequences of one or more ids that never occur.
        not_before: Pairs (id, position): the id does not occur before this position.
        forced: Pairs (position, ids): one of the ids occurs at this position, regardless of all other constraints. If
            a position is listed twice, the last pair counts.
        timestamps: The rules for timestamps. In a batch, all rows with rules have the same ids.
    """

    no_repeat_ngram_size: int = 0
    banned: tuple[tuple[int, ...], ...] = ()
    not_before: tuple[tuple[int, int], ...] = ()
    forced: tuple[tuple[int, tuple[int, ...]], ...] = ()
    timestamps: TimestampRules | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.no_repeat_ngram_size or self.banned or self.not_before or self.forced or self.timestamps)

    @cached_property
    def never(self) -> tuple[int, ...]:
        """Ids that never occur."""
        return tuple(ids[0] for ids in self.banned if len(ids) == 1)

    @cached_property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        """Banned sequences of several ids."""
        return tuple(ids for ids in self.banned if len(ids) > 1)

    def forces(self, position: int) -> bool:
        return any(position == forced for forced, _ in self.forced)


class History(NamedTuple):
    """The tokens before each position, for penalties and constraints.

    Args:
        tokens: The committed ids of each row.
        drafted: (B, N) draft ids after them, lazy, or None. The last position sees all of them, the position before it
            one fewer, and so on.
        constraints: The constraints of each row, or () if no row has any.
    """

    tokens: Sequence[Sequence[int]]
    drafted: mx.array | None = None
    constraints: Sequence[Constraints] = ()

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for tokens in self.tokens]

    def positions(self, length: int) -> list[range]:
        """The numbers of each row's last `length` positions."""
        first = 1 - length + (0 if self.drafted is None else self.drafted.shape[1])
        return [range(count + first, count + first + length) for count in self.lengths]


def is_constrained(history: History, length: int) -> bool:
    """Whether a constraint applies at any of the `length` positions."""
    if all(own.is_empty for own in history.constraints):  # nearly always, and faster than the check below
        return False
    return any(
        own.no_repeat_ngram_size
        or own.banned
        or own.timestamps
        or any(positions.start < position for _, position in own.not_before)
        or any(position in positions for position, _ in own.forced)
        for own, positions in zip(history.constraints, history.positions(length), strict=False)
    )


def constrain(logits: mx.array, history: History) -> mx.array:
    """(B, L, V): set the logits of forbidden ids to -inf.

    If no id would be left, for example in a draft with a small vocabulary, the position stays unchanged. At a forced
    position only the forced ids remain, even if they are forbidden.
    """
    batch_shape = logits.shape[:2]
    length = logits.shape[1]
    vocab_size = logits.shape[-1]
    if not is_constrained(history, length):
        return logits
    forbidden = [*early_ids(history, length, vocab_size)]
    if any(own.no_repeat_ngram_size or own.sequences for own in history.constraints):
        windows = TokenWindows(history, length)
        forbidden += repeated_ids(windows, history, vocab_size)
        forbidden += banned_ids(windows, history, vocab_size)
    allowed = logits
    if forbidden:
        ids = mx.concatenate([mx.broadcast_to(each, (*batch_shape, each.shape[-1])) for each in forbidden], axis=-1)
        allowed = mx.where(mask_of(ids, vocab_size), -mx.inf, allowed)
    never = [own.never for own in history.constraints]
    if any(never):
        allowed = mx.where(never_mask(tuple(never), vocab_size), -mx.inf, allowed)
    if any(own.timestamps for own in history.constraints):
        allowed, largest = keep_timestamp_rules(allowed, history)
        logits = mx.where(largest[..., None] > -mx.inf, allowed, logits)
    elif allowed is not logits:
        logits = mx.where(allowed.max(axis=-1, keepdims=True) > -mx.inf, allowed, logits)
    return force(logits, history)


@lru_cache(maxsize=8)
def never_mask(never: tuple[tuple[int, ...], ...], vocab_size: int) -> mx.array:
    """(B, 1, V), or (1, V) if all rows agree: True at the ids of each row. Cached, because rounds repeat it."""
    if len({*never}) == 1:
        never = never[:1]
    masks = [mask_of(mx.array(ids, mx.int32)[None, None], vocab_size)[0] for ids in never]
    mask = masks[0] if len(masks) == 1 else mx.stack(masks)
    mx.eval(mask)
    return mask


def mask_of(ids: mx.array, vocab_size: int) -> mx.array:
    """(B, L, M) ids -> (B, L, V): True at these ids. The id V marks an empty entry."""
    empty = mx.zeros((*ids.shape[:2], vocab_size + 1), mx.bool_)
    return mx.put_along_axis(empty, ids, mx.array(True), axis=-1)[..., :vocab_size]


class TokenWindows:
    """The ids before each of `length` positions, aligned at their ends.

    `ids` is (B, N + T + D): N paddings for the longest n-gram or sequence that is compared, up to T committed ids, and
    D draft ids. Shorter rows have more padding.
    """

    def __init__(self, history: History, length: int) -> None:
        longest_sequence = max(
            max(own.no_repeat_ngram_size, *(len(ids) for ids in own.sequences), 0) for own in history.constraints
        )
        total = longest_sequence + max(history.lengths)
        ids = [[*[PADDING] * (total - len(tokens)), *tokens] for tokens in history.tokens]
        self.ids = mx.array(ids, mx.int32)
        if history.drafted is not None and history.drafted.shape[1]:
            self.ids = mx.concatenate([self.ids, history.drafted.astype(mx.int32)], axis=1)
        self.length = length
        self.first = self.ids.shape[1] - length + 1  # ids before the first position; each later position has one more

    def end_with(self, sequence: Iterable[mx.array]) -> mx.array | bool:
        """Compare the last ids before each position with a sequence.

        Args:
            sequence: Consecutive ids, each an array (B, M) or (M,) of M alternatives.

        Returns:
            (B, L, M) bools, or True for an empty sequence.
        """
        matches: mx.array | bool = True
        expected_ids = list(sequence)
        for start, expected in enumerate(expected_ids, self.first - len(expected_ids)):
            matches = (self.ids[:, start : start + self.length, None] == expected[..., None, :]) & matches
        return matches


def repeated_ids(windows: TokenWindows, history: History, vocab_size: int) -> Iterator[mx.array]:
    """Yield (B, L, M) ids that would repeat an n-gram, or V for an empty entry.

    An earlier n-gram forbids its last id wherever the n - 1 ids before a position are its first n - 1 ids.
    """
    sizes = [own.no_repeat_ngram_size for own in history.constraints]
    for size in {*sizes} - {0}:
        count = windows.ids.shape[1] - size + 1
        ngrams = [windows.ids[:, i : i + count] for i in range(size)]
        ends = mx.arange(count) + size
        is_earlier = ends <= windows.first + mx.arange(windows.length)[:, None]
        is_complete = (ngrams[0] != PADDING)[:, None]
        applies = mx.array([own == size for own in sizes])[:, None, None]
        matches = is_earlier & is_complete & applies & windows.end_with(ngrams[:-1])
        yield mx.where(matches, ngrams[-1][:, None], vocab_size)


def banned_ids(windows: TokenWindows, history: History, vocab_size: int) -> Iterator[mx.array]:
    """Yield (B, L, M) ids that would complete a banned sequence, or V for an empty entry."""
    for sequences in {own.sequences for own in history.constraints} - {()}:
        applies = mx.array([own.sequences == sequences for own in history.constraints])[:, None, None]
        for size in {len(ids) for ids in sequences}:
            banned = mx.array([ids for ids in sequences if len(ids) == size], mx.int32)
            matches = applies & windows.end_with(banned[:, i] for i in range(size - 1))
            yield mx.where(matches, banned[:, -1], vocab_size)


def early_ids(history: History, length: int, vocab_size: int) -> Iterator[mx.array]:
    """Yield (B, L, M) ids that are not allowed yet, or V for an empty entry."""
    positions = history.positions(length)
    rows = [
        [(token, position) for token, position in own.not_before if own_positions.start < position]
        for own, own_positions in zip(history.constraints, positions, strict=True)
    ]
    longest = max(len(pairs) for pairs in rows)
    if longest:
        padded = mx.array([[*pairs, *[(vocab_size, 0)] * (longest - len(pairs))] for pairs in rows])  # (B, M, 2)
        ids = padded[:, None, :, 0]
        earliest = padded[:, None, :, 1]
        current = mx.array([[*each] for each in positions])[..., None]
        yield mx.where(current < earliest, ids, vocab_size)


def keep_timestamp_rules(logits: mx.array, history: History) -> tuple[mx.array, mx.array]:
    """(B, L, V) logits with all other constraints: set those of ids that `TimestampRules` forbid to -inf.

    Returns:
        The logits, and the largest one of each position (B, L), without another pass over the vocabulary.
    """
    rules = [own.timestamps for own in history.constraints]
    zero, text_end, added = next((own.zero, own.text_end, own.added_from) for own in rules if own is not None)
    length = logits.shape[1]
    stop = 0 if history.drafted is None else history.drafted.shape[1]
    counts = mx.array(  # (B, L): generated tokens before each position
        [
            [2] * length if own is None else [position - own.begin for position in positions]
            for own, positions in zip(rules, history.positions(length), strict=True)
        ]
    )
    ids = mx.array([recent(own, tokens) for own, tokens in zip(rules, history.tokens, strict=True)], mx.int32)
    if history.drafted is not None and stop:
        drafted = history.drafted.astype(mx.int32)
        ids = mx.concatenate([ids, mx.where(mx.array([[own is None] for own in rules]), PADDING, drafted)], axis=1)

    # Column i of these (B, 3 + D) arrays: the last timestamp of the row, its last two ids, its draft ids.
    stop_id = logits.shape[-1] if added is None else added
    is_timestamp = (ids >= zero) & (ids < stop_id)
    latest_column = mx.cummax(mx.where(is_timestamp, mx.arange(ids.shape[1]), 0), axis=1)
    latest = mx.take_along_axis(ids, latest_column, axis=1)
    end = ids.shape[1]
    start = end - length
    last = is_timestamp[:, start:end]
    before_last = is_timestamp[:, start - 1 : end - 1] | (counts < 2)
    latest = latest[:, start:end]
    is_first = counts == 0
    ends_segment = last & ~before_last
    starts_segment = last & before_last

    has_timestamp = (latest >= zero) & (latest < stop_id)
    lowest = mx.where(has_timestamp, latest + ~ends_segment, zero)
    lowest = mx.where(starts_segment, stop_id, lowest)
    highest_first = [stop_id if own is None or own.max_initial is None else own.max_initial for own in rules]
    highest = mx.where(is_first, mx.array(highest_first)[:, None], stop_id)
    own_ids = mx.arange(zero, stop_id)
    is_allowed = (own_ids >= lowest[..., None]) & (own_ids <= highest[..., None])
    timestamps = mx.where(is_allowed, logits[..., zero:stop_id], -mx.inf)

    text, special = logits[..., :text_end], logits[..., text_end:zero]
    no_text = is_first | ends_segment
    largest_text = text.max(axis=-1)
    if added is not None:
        largest_text = mx.maximum(largest_text, logits[..., added:].max(axis=-1))
    best_text = mx.where(no_text, -mx.inf, largest_text)
    best_special = mx.where(is_first, -mx.inf, special.max(axis=-1))
    likeliest = mx.maximum(best_text, best_special)
    is_likelier = mx.logsumexp(timestamps.astype(mx.float32), axis=-1) > likeliest.astype(mx.float32)
    has_rules = mx.array([[own is not None] for own in rules])
    only_timestamps = has_rules & (is_first | is_likelier)
    parts = [
        mx.where((no_text | only_timestamps)[..., None], -mx.inf, text),
        mx.where(only_timestamps[..., None], -mx.inf, special),
        timestamps,
    ]
    if added is not None:
        parts.append(mx.where((no_text | only_timestamps)[..., None], -mx.inf, logits[..., added:]))
    largest = mx.maximum(timestamps.max(axis=-1), mx.where(only_timestamps, -mx.inf, likeliest))
    return mx.concatenate(parts, axis=-1), largest


def recent(rules: TimestampRules | None, tokens: Sequence[int]) -> list[int]:
    """The last generated timestamp and the last two ids, or PADDING in their places."""
    if rules is None:
        return [PADDING] * 3
    begin = rules.begin
    latest = next((token for token in reversed(tokens[begin:]) if rules.is_timestamp(token)), PADDING)
    return [latest, *([PADDING, PADDING, *tokens[begin:]][-2:])]


def force(logits: mx.array, history: History) -> mx.array:
    """(B, L, V): at forced positions, 0 for the forced ids and -inf for all others."""
    vocab_size = logits.shape[-1]
    forced = [
        [dict(own.forced).get(position, ()) for position in positions]
        for own, positions in zip(history.constraints, history.positions(logits.shape[1]), strict=True)
    ]
    longest = max(len(ids) for row in forced for ids in row)
    if not longest:
        return logits
    padded = mx.array([[[*ids, *[vocab_size] * (longest - len(ids))] for ids in row] for row in forced])
    is_forced = mx.array([[bool(ids) for ids in row] for row in forced])[..., None]
    return mx.where(is_forced, mx.where(mask_of(padded, vocab_size), 0.0, -mx.inf).astype(logits.dtype), logits)
