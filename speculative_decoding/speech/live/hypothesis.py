"""A hypothesis: the output for a window of live speech, with words and segments. It is the draft of the next one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple

from ..draft_texts import Transcript, WindowDraft
from ..segments import FRAMES_PER_POSITION, FRAMES_PER_SECOND
from ..speech_text import SpeechText
from .agreement import HypothesisWord


class SegmentEnd(NamedTuple):
    """The end of a segment: the numbers of the hypothesis's words and tokens up to it, and its frame in the stream."""

    num_words: int
    num_tokens: int
    frame: int


@dataclass(frozen=True)
class Hypothesis:
    """The output for a window.

    Args:
        start: The first frame of the window, counted from the start of the stream.
        tokens: Text and timestamps, without the end token.
        words: The words, in order.
        ends: The ends of the segments, in order, except for an unfinished last segment.
    """

    start: int
    tokens: Sequence[int]
    words: Sequence[HypothesisWord]
    ends: Sequence[SegmentEnd]

    @classmethod
    def of(
        cls, start: int, tokens: Sequence[int], from_draft: Sequence[bool], text: SpeechText, language: str
    ) -> Hypothesis:
        """Split an output. from_draft: for each token, whether it is an accepted draft token."""
        words: list[HypothesisWord] = []
        ends = []
        drafted = iter(from_draft)
        position = 0
        for is_text, run in groupby(tokens, text.audio.is_text):
            own = [*run]
            if is_text:
                words += hypothesis_words(text.words(own, language), drafted)
            else:
                if position:
                    frame = start + (own[0] - text.audio.timestamp_begin) * FRAMES_PER_POSITION
                    ends.append(SegmentEnd(len(words), position + 1, frame))
                [*islice(drafted, len(own))]
            position += len(own)
        return cls(start, tokens, words, ends)

    def after(self, num_tokens: int) -> Hypothesis:
        """Return only the tokens after the first `num_tokens`, for use as a draft. `Agreement` keeps the words."""
        return Hypothesis(self.start, self.tokens[num_tokens:], (), ())


def hypothesis_words(words: Sequence[tuple[str, list[int]]], drafted: Iterator[bool]) -> Iterator[HypothesisWord]:
    for text, tokens in words:
        yield HypothesisWord(text, tokens, all([*islice(drafted, len(tokens))]))


class LastHypothesis:
    """The last hypothesis, with its times, for use as the draft text of the next one.

    Args:
        hypothesis: The part of the last hypothesis after the last cut.
        text: Encodes and decodes text.
    """

    def __init__(self, hypothesis: Hypothesis, text: SpeechText) -> None:
        self._transcript = Transcript(text)
        self._transcript.update([*hypothesis.tokens, text.audio.end], hypothesis.start / FRAMES_PER_SECOND)

    def window(self, tokens: Sequence[int], start: float, has_times: bool) -> WindowDraft:
        """See `RecordingDraft`. The window and the text start at the same time."""
        return WindowDraft(self._transcript, 0, start if has_times else None)
