"""Applies constraints to the logits of all rows of a batch at once.

Shapes: B rows, L positions, V ids, T tokens of the longest row, M ids that are compared or forbidden at one position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import mlx.core as mx

from .constraints import History

PADDING = -1  # fills shorter rows on the left; not a valid id


def constrain(logits: mx.array, history: History) -> mx.array:
    """(B, L, V): set the logits of forbidden ids to -inf. Call this only if `is_constrained` is true.

    If all ids at a position are forbidden, for example because the draft's vocabulary is small, the logits there stay
    unchanged. At a forced position, only the forced ids remain, even if they are forbidden.
    """
    batch_shape = logits.shape[:2]
    length = logits.shape[1]
    vocab_size = logits.shape[-1]
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
    processor = next((own.processor for own in history.constraints if own.processor), None)
    if processor is not None:
        allowed, largest = processor.process(allowed, history)
    elif allowed is not logits:
        largest = allowed.max(axis=-1)
    if allowed is not logits:
        logits = mx.where(largest[..., None] > -mx.inf, allowed, logits)
    return force(logits, history)


@lru_cache(maxsize=8)
def never_mask(never: tuple[tuple[int, ...], ...], vocab_size: int) -> mx.array:
    """(B, 1, V), or (1, V) if all rows forbid the same ids: True at each row's ids. Cached for later rounds."""
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

    `ids` is (B, N + T + D): N padding ids, where N is the length of the longest n-gram or sequence to compare; then up
    to T committed ids, and D draft ids. Shorter rows contain more padding.
    """

    def __init__(self, history: History, length: int) -> None:
        longest_sequence = max(
            max(own.no_repeat_ngram_size, *(len(ids) for ids in own.sequences), 0) for own in history.constraints
        )
        total = longest_sequence + max(map(len, history.tokens))
        ids = [[*[PADDING] * (total - len(tokens)), *tokens] for tokens in history.tokens]
        self.ids = mx.array(ids, mx.int32)
        if history.drafted is not None and history.drafted.shape[1]:
            self.ids = mx.concatenate([self.ids, history.drafted.astype(mx.int32)], axis=1)
        self.length = length
        self.first = self.ids.shape[1] - length + 1  # number of ids before the first position

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

    If the n - 1 ids before a position begin an earlier n-gram, the last id of that n-gram is forbidden there.
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
