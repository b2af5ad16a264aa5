"""Whisper's rules for timestamps (openai-whisper 20250625, `ApplyTimestampRules`), for all rows of a batch at once.

Shapes: B rows, L positions, V ids, and D draft ids, which follow the committed ids and are still on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..sampling.constraints import History
from ..sampling.masking import PADDING


@dataclass(frozen=True)
class TimestampRules:
    """A `LogitsProcessor` that requires timestamps around the segments of a transcript.

    - After the timestamp that ends a segment, the output ends or the next segment starts with a timestamp. Text follows
      a timestamp that starts a segment.
    - Timestamps never decrease, and a segment ends later than it starts.
    - The first token is a timestamp whose id is at most `max_initial`.
    - If all timestamps together are more likely than any other token, a timestamp follows. The probabilities are
      compared after all other constraints, at temperature 1.

    Args:
        begin: The position of the first generated token. The rules ignore earlier tokens, such as previous text.
        text_end: Ids below this one are text tokens.
        zero: The id of the timestamp 0. The other timestamps follow in order.
        max_initial: The highest id allowed for the first timestamp; None allows all.
        added_from: The first id after the timestamps; this and all higher ids are text. None if there are no higher
            ids.
    """

    begin: int
    text_end: int
    zero: int
    max_initial: int | None = None
    added_from: int | None = None

    def process(self, logits: mx.array, history: History) -> tuple[mx.array, mx.array]:
        """See `LogitsProcessor`. Text tokens and timestamps have the same ids in all rows with rules."""
        found = [own.processor for own in history.constraints]
        rows = [own if isinstance(own, TimestampRules) else None for own in found]
        stop = logits.shape[-1] if self.added_from is None else self.added_from
        is_first, last, before_last, latest = self._preceding(rows, history, logits.shape[1], stop)
        ends_segment = last & ~before_last

        # Timestamps come in pairs and do not decrease, and the first one is at most `max_initial`
        lowest = mx.where(last & before_last, stop, mx.maximum(latest + ~ends_segment, self.zero))
        highest_first = [stop if own is None or own.max_initial is None else own.max_initial for own in rows]
        highest = mx.where(is_first, mx.array(highest_first)[:, None], stop)
        timestamps = within(logits[..., self.zero : stop], lowest - self.zero, highest - self.zero)

        # The first token is a timestamp, and no text follows the timestamp that ends a segment
        no_text = is_first | ends_segment
        others = [(logits[..., : self.text_end], no_text), (logits[..., self.text_end : self.zero], is_first)]
        if stop < logits.shape[-1]:
            others.append((logits[..., stop:], no_text))
        likeliest = mx.stack([mx.where(is_forbidden, -mx.inf, part.max(axis=-1)) for part, is_forbidden in others])
        likeliest = likeliest.max(axis=0)

        # A timestamp follows if all of them together are more likely than any other token
        is_likelier = mx.logsumexp(timestamps.astype(mx.float32), axis=-1) > likeliest.astype(mx.float32)
        only_timestamps = mx.array([[own is not None] for own in rows]) & is_likelier
        text, special, *added = (
            mx.where((is_forbidden | only_timestamps)[..., None], -mx.inf, part) for part, is_forbidden in others
        )
        largest = mx.maximum(timestamps.max(axis=-1), mx.where(only_timestamps, -mx.inf, likeliest))
        return mx.concatenate([text, special, timestamps, *added], axis=-1), largest

    def _preceding(
        self, rows: Sequence[TimestampRules | None], history: History, length: int, stop: int
    ) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Describe the tokens before each position. In rows without rules, these tokens are treated as text.

        Returns:
            Four (B, L) arrays: whether no token has been generated; whether the last token is a timestamp; whether the
            token before it is a timestamp or missing; and the last timestamp, or PADDING if there is none.
        """
        counts = mx.array(
            [
                [2] * length if own is None else [position - own.begin for position in positions]
                for own, positions in zip(rows, history.positions(length), strict=True)
            ]
        )
        ids = mx.array([recent(own, tokens) for own, tokens in zip(rows, history.tokens, strict=True)], mx.int32)
        if history.drafted is not None and history.drafted.shape[1]:
            drafted = mx.where(mx.array([[own is None] for own in rows]), PADDING, history.drafted.astype(mx.int32))
            ids = mx.concatenate([ids, drafted], axis=1)
        is_timestamp = (ids >= self.zero) & (ids < stop)  # (B, 3 + D)
        latest_column = mx.cummax(mx.where(is_timestamp, mx.arange(ids.shape[1]), 0), axis=1)
        latest = mx.take_along_axis(ids, latest_column, axis=1)
        start = ids.shape[1] - length
        return counts == 0, is_timestamp[:, start:], is_timestamp[:, start - 1 : -1] | (counts < 2), latest[:, start:]

    def draft_choice(self, ids: mx.array, tokens: Sequence[Sequence[int]]) -> Callable[[mx.array], mx.array] | None:
        first_timestamp = int(np.searchsorted(np.asarray(ids), self.zero))
        if 0 < first_timestamp < ids.size:
            return DraftChoice(self, ids, first_timestamp, tokens)
        return None


def within(logits: mx.array, lowest: mx.array, highest: mx.array) -> mx.array:
    """Set (B, L, N) logits to -inf outside the indices from `lowest` to `highest`, (B, L)."""
    places = mx.arange(logits.shape[-1])
    return mx.where((places >= lowest[..., None]) & (places <= highest[..., None]), logits, -mx.inf)


def recent(rules: TimestampRules | None, tokens: Sequence[int]) -> list[int]:
    """Return the last generated timestamp and the last two generated ids, with PADDING for any that are missing."""
    if rules is None:
        return [PADDING] * 3
    output = tokens[rules.begin :]
    stop = rules.added_from or max(output, default=0) + 1
    latest = next((token for token in reversed(output) if rules.zero <= token < stop), PADDING)
    return [latest, *([PADDING, PADDING, *output][-2:])]


class DraftChoice:
    """Chooses the most likely id under only two of the rules: applying all of them would take longer than a draft step.

    A timestamp follows if all timestamps together are more likely than any other id. After a timestamp that ends a
    segment, the same timestamp follows, because the next segment usually starts with it.

    Args:
        rules: The rules of any row; ids of text tokens and timestamps are the same in all rows.
        ids: (N,) ids that may be proposed.
        first_timestamp: The index of the first timestamp in `ids`.
        tokens: The committed tokens of each row.
    """

    def __init__(
        self, rules: TimestampRules, ids: mx.array, first_timestamp: int, tokens: Sequence[Sequence[int]]
    ) -> None:
        self._rules = rules
        self._ids = ids
        self._first_timestamp = first_timestamp
        last_two = mx.array([[0, *own][-2:] for own in tokens], mx.uint32)  # 0 pads a single token (English models)
        self._before, self._last = mx.split(last_two, 2, axis=1)

    def __call__(self, logits: mx.array) -> mx.array:
        """(B, N) -> (B, 1)."""
        others, timestamps = mx.split(logits, [self._first_timestamp], axis=-1)
        is_likelier = mx.logsumexp(timestamps, axis=-1, keepdims=True) > others.max(axis=-1, keepdims=True)
        best_timestamp = mx.argmax(timestamps, axis=-1, keepdims=True) + others.shape[-1]
        new = self._ids[mx.where(is_likelier, best_timestamp, mx.argmax(others, axis=-1, keepdims=True))]
        begins_pair = (self._last >= self._rules.zero) & (self._before < self._rules.text_end)
        new = mx.where(begins_pair & (new != self._rules.text_end), self._last, new)
        self._before, self._last = self._last, new
        return new
