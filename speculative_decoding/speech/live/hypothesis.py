"""A hypothesis: the output for a window of live speech, its words and segments, and its use as the next draft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple

from ...drafters.base import TEXT
from ...drafters.draft_text import DraftText
from ..draft_texts import Transcript, WindowDraft
from ..segments import FRAMES_PER_POSITION, FRAMES_PER_SECOND
from ..speech_text import SpeechText
from .agreement import HeardWord


class SegmentEnd(NamedTuple):
    """Where a segment ends: after how many words and tokens of the hypothesis, and at which frame of the stream."""

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
        ends: The ends of its segments, in order. An unfinished last segment has none.
    """

    start: int
    tokens: Sequence[int]
    words: Sequence[HeardWord]
    ends: Sequence[SegmentEnd]

    @classmethod
    def of(
        cls, start: int, tokens: Sequence[int], from_draft: Sequence[bool], text: SpeechText, language: str
    ) -> Hypothesis:
        """Split an output. from_draft: for each token, whether it is an accepted draft token."""
        words: list[HeardWord] = []
        ends = []
        drafted = iter(from_draft)
        position = 0
        for is_text, run in groupby(tokens, text.audio.is_text):
            own = [*run]
            if is_text:
                words += heard_words(text.words(own, language), drafted)
            else:
                if position:
                    frame = start + (own[0] - text.audio.timestamp_begin) * FRAMES_PER_POSITION
                    ends.append(SegmentEnd(len(words), position + 1, frame))
                [*islice(drafted, len(own))]
            position += len(own)
        return cls(start, tokens, words, ends)

    def after(self, num_tokens: int) -> Hypothesis:
        """Return the rest of the tokens, as a draft. `Agreement` keeps the rest of the words."""
        return Hypothesis(self.start, self.tokens[num_tokens:], (), ())


def heard_words(words: Sequence[tuple[str, list[int]]], drafted: Iterator[bool]) -> Iterator[HeardWord]:
    for text, tokens in words:
        yield HeardWord(text, tokens, all([*islice(drafted, len(tokens))]))


class LastHypothesis:
    """The draft text of the next hypothesis: the last one, with its times.

    Args:
        hypothesis: What follows the last cut.
        text: Encodes and decodes text.
        pieces: The vocabulary's pieces by id.
    """

    def __init__(self, hypothesis: Hypothesis, text: SpeechText, pieces: Mapping[int, str]) -> None:
        self._transcript = Transcript(DraftText([], pieces, TEXT), text)
        audio = text.audio
        for token in hypothesis.tokens:
            if audio.is_timestamp(token):
                frame = hypothesis.start + (token - audio.timestamp_begin) * FRAMES_PER_POSITION
                self._transcript.add_time(frame / FRAMES_PER_SECOND)
            else:
                self._transcript.add(token)
        self._transcript.add(audio.end)

    def window(self, tokens: Sequence[int], start: float, has_times: bool) -> WindowDraft:
        """See `RecordingDraft`. The window starts where the text does."""
        return WindowDraft(self._transcript, 0, start if has_times else None)
