"""Times each word by dynamic time warping of cross-attention (openai-whisper 20250625, timing.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .options import TranscriptionOptions
from .segments import Segment, Window, Word
from .speech_text import SpeechText

MEDIAN_WIDTH = 7  # positions
POSITIONS_PER_SECOND = 50
SENTENCE_ENDS = ".。!！?？"  # noqa: RUF001
LONGEST_MEDIAN = 0.7  # seconds


@dataclass
class TimedWord:
    """A word with its tokens and its time in the window, in seconds."""

    word: str
    tokens: list[int]
    start: float
    end: float
    probability: float


def align(
    words: Sequence[tuple[str, list[int]]], scores: NDArray[np.float32], first: int, probabilities: Sequence[float]
) -> list[TimedWord]:
    """Find the times of words.

    Args:
        words: The words of a window, followed by the end token.
        scores: (heads, L, S) cross-attention scores before the softmax.
        first: The position that predicts the first word's first token. The input at the last position is the end token.
        probabilities: The probability of each token except the end token.
    """
    if len(words) <= 1:
        return []
    tokens, positions = cheapest_path(-attention(scores)[first:-1])
    begins_token = np.diff(tokens, prepend=tokens[0] - 1) > 0
    times = positions[begins_token] / POSITIONS_PER_SECOND
    bounds = np.cumsum([0, *(len(own) for _, own in words[:-1])])
    return [
        TimedWord(word, own, float(times[i]), float(times[j]), float(np.mean(probabilities[i:j])))
        for (word, own), i, j in zip(words, bounds, bounds[1:], strict=False)
    ]


def attention(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """(heads, L, S) scores -> (L, S): the mean over heads of normalized, smoothed probabilities."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # 0 / 0 at positions to which no token attends
        weights = (weights - weights.mean(axis=-2, keepdims=True)) / weights.std(axis=-2, keepdims=True)
    half = MEDIAN_WIDTH // 2
    if weights.shape[-1] > half:
        padded = np.pad(weights, [(0, 0), (0, 0), (half, half)], mode="reflect")
        around = np.lib.stride_tricks.sliding_window_view(padded, MEDIAN_WIDTH, axis=-1)
        weights = np.partition(around, half, axis=-1)[..., half]
    mean: NDArray[np.float32] = weights.mean(axis=0)
    return mean


def cheapest_path(costs: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of the cheapest path through (N, M) costs, found by dynamic time warping.

    The path connects the first entry to the last one. A step moves to the next row, the next column, or both. Ties go
    to the step to the next column. Sums are computed in float32, one anti-diagonal at a time.
    """
    rows, columns = costs.shape
    steps = np.full((rows + 1, columns + 1), 2, np.int8)
    steps[:, 0] = 1
    before, last = np.full((2, rows + 1), np.inf, np.float32)  # sums on the last two anti-diagonals, indexed by row
    before[0] = 0
    for diagonal in range(2, rows + columns + 1):
        low, high = max(1, diagonal - columns), min(rows, diagonal - 1)
        row = np.arange(low, high + 1)
        both, down, right = before[low - 1 : high], last[low - 1 : high], last[low : high + 1]
        step = np.where((both < down) & (both < right), 0, np.where((down < both) & (down < right), 1, 2))
        best = np.where(step == 0, both, np.where(step == 1, down, right)).astype(np.float64)
        before, last = last, np.full(rows + 1, np.inf, np.float32)
        last[low : high + 1] = costs[row - 1, diagonal - row - 1] + best
        steps[row, diagonal - row] = step
    row_, column = rows, columns
    path = []
    while row_ > 0 or column > 0:
        path.append((row_ - 1, column - 1))
        step_ = steps[row_, column]
        row_ -= step_ != 2
        column -= step_ != 1
    found = np.array(path[::-1])
    return found[:, 0], found[:, 1]


def add_words(
    segments: Sequence[Segment],
    words: Sequence[TimedWord],
    window: Window,
    text: SpeechText,
    options: TranscriptionOptions,
    last_speech: float,
) -> None:
    """Set the words of each segment, and adjust its start and end to them.

    Args:
        segments: The segments of one window.
        words: The words of these segments, in order; modified in place.
        window: The window.
        text: Identifies text tokens.
        options: The options, which list the punctuation.
        last_speech: The end of the last word before this window, in seconds.
    """
    durations = np.array([word.end - word.start for word in words])
    durations = durations[durations.nonzero()]
    median = min(LONGEST_MEDIAN, float(np.median(durations))) if len(durations) else 0.0
    if len(durations):
        shorten_at_sentence_ends(words, 2 * median)
    merge_punctuation(words, options.prepend_punctuations, options.append_punctuations)
    waiting = iter(words)
    for segment in segments:
        own = segment_words(waiting, sum(map(text.audio.is_text, segment.tokens)), window.start)
        segment.words = own
        if own:
            shorten_after_pause(own, last_speech, median)
            fit(segment, own, median)
            last_speech = segment.end


def segment_words(waiting: Iterator[TimedWord], num_tokens: int, offset: float) -> list[Word]:
    """Take the next words up to a total of `num_tokens` tokens, and add `offset` seconds to their times."""
    found = []
    while num_tokens > 0 and (timed := next(waiting, None)) is not None:
        num_tokens -= len(timed.tokens)
        if timed.word:
            start, end = round(offset + timed.start, 2), round(offset + timed.end, 2)
            found.append(Word(timed.word, start, end, timed.probability))
    return found


def shorten_at_sentence_ends(words: Sequence[TimedWord], longest: float) -> None:
    """Shorten a punctuation mark or the first word of the next sentence if it is longer than `longest` seconds."""
    for before, word in pairwise(words):
        if word.end - word.start > longest:
            if word.word in SENTENCE_ENDS:
                word.end = word.start + longest
            elif before.word in SENTENCE_ENDS:
                word.start = word.end - longest


def shorten_after_pause(words: Sequence[Word], last_speech: float, median: float) -> None:
    """Shorten the first two words after a pause if they are too long, because their times often begin too early."""
    first, longest = words[0], 2 * median
    second = words[1] if len(words) > 1 else None
    is_long = first.end - first.start > longest or (second is not None and second.end - first.start > 2 * longest)
    if first.end - last_speech > 4 * median and is_long:
        if second is not None and second.end - second.start > longest:
            first.end = second.start = max(second.end / 2, second.end - longest)
        first.start = max(0, first.end - longest)


def fit(segment: Segment, words: Sequence[Word], median: float) -> None:
    """Adjust a segment to its words. If the first or last word is too long, adjust that word to the segment instead."""
    first, last = words[0], words[-1]
    if segment.start < first.end and segment.start - 0.5 > first.start:
        first.start = max(0, min(first.end - median, segment.start))
    else:
        segment.start = first.start
    if segment.end > last.start and segment.end + 0.5 < last.end:
        last.end = max(last.start + median, segment.end)
    else:
        segment.end = last.end


def merge_punctuation(words: Sequence[TimedWord], prepended: str, appended: str) -> None:
    """Merge each punctuation mark into the word that it belongs to. The mark's own entry becomes empty."""
    if not words:
        return
    following = words[-1]
    for word in reversed(words[:-1]):
        if word.word.startswith(" ") and word.word.strip() in prepended:
            following.word = word.word + following.word
            following.tokens = word.tokens + following.tokens
            word.word, word.tokens = "", []
        else:
            following = word
    before = words[0]
    for word in words[1:]:
        if not before.word.endswith(" ") and word.word in appended:
            before.word += word.word
            before.tokens = before.tokens + word.tokens
            word.word, word.tokens = "", []
        else:
            before = word
