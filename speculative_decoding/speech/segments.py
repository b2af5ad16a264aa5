"""Segments of a transcript, split from the tokens of a window (openai-whisper 20250625, transcribe.py)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from ..models.source import AudioFrames
from .speech_text import SpeechText

FRAMES_PER_SECOND = 100
FRAMES_PER_POSITION = 2  # frames per position of the encoder output; timestamps have the same spacing
SECONDS_PER_POSITION = 0.02


@dataclass
class Word:
    """A word with its time in the recording, in seconds. probability: the mean probability of its tokens."""

    word: str
    start: float
    end: float
    probability: float


@dataclass
class Segment:
    """A part of a transcript, with the fields of openai-whisper.

    Args:
        id: The segment's index in the transcript.
        seek: The first frame of its window.
        start: The start in seconds.
        end: The end in seconds.
        text: Empty if the segment has no duration.
        tokens: The token ids, including timestamps.
        temperature: The temperature of its window.
        avg_logprob: The mean log-probability of the window's tokens and the end token.
        compression_ratio: The compression ratio of the window's text.
        no_speech_prob: The probability that the window contains no speech.
        words: The words; None unless requested.
        from_draft: Whether each token is an accepted draft token. Not compared, because drafts change no output.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None = None
    from_draft: Sequence[bool] = field(default=(), repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return openai-whisper's fields for JSON, without `words` if they were not requested."""
        values = asdict(self)
        del values["from_draft"]
        if self.words is None:
            del values["words"]
        return values


@dataclass(frozen=True, eq=False)
class Window:
    """Up to 30 seconds of a recording.

    seek: The first frame.
    size: The number of frames from the recording. Zeros follow them.
    """

    seek: int
    size: int
    audio: AudioFrames = field(repr=False)

    @property
    def start(self) -> float:
        return self.seek / FRAMES_PER_SECOND

    @property
    def seconds(self) -> float:
        return self.size / FRAMES_PER_SECOND

    @property
    def end(self) -> float:
        """The end of the window, including the zeros, in seconds."""
        return (self.seek + len(self.audio) * FRAMES_PER_POSITION) / FRAMES_PER_SECOND


@dataclass(frozen=True)
class DecodedWindow:
    """The output for a window; see `Segment`. tokens: the token ids without the end token."""

    tokens: list[int]
    text: str
    temperature: float
    avg_logprob: float
    no_speech_prob: float
    from_draft: Sequence[bool] = ()

    @property
    def compression_ratio(self) -> float:
        """The text's size divided by its size after zlib compression. Repetitive text has a high ratio."""
        text = self.text.encode()
        return len(text) / len(zlib.compress(text))


class Split(NamedTuple):
    """The segments of a window, and the first frame of the next window.

    is_complete: Whether the output ends with a single timestamp, which means that no speech follows in the window.
    """

    segments: list[Segment]
    seek: int
    is_complete: bool


def segment_of(
    decoded: DecodedWindow, window: Window, text: SpeechText, first: int, last: int, start: float, end: float
) -> Segment:
    """Return a segment that contains the tokens from `first` to `last`. start, end: in seconds."""
    own = decoded.tokens[first:last]
    return Segment(
        id=0,
        seek=window.seek,
        start=start,
        end=end,
        text=text.decode([*filter(text.audio.is_text, own)]),
        tokens=own,
        temperature=decoded.temperature,
        avg_logprob=decoded.avg_logprob,
        compression_ratio=decoded.compression_ratio,
        no_speech_prob=decoded.no_speech_prob,
        from_draft=decoded.from_draft[first:last],
    )


def whole(decoded: DecodedWindow, window: Window, text: SpeechText) -> Split:
    """Return the whole window, which was decoded without timestamps, as one segment.

    The model may generate timestamps anyway. They are ignored, because without timestamp rules they may be in any
    order.
    """
    all_of_it = segment_of(decoded, window, text, 0, len(decoded.tokens), window.start, window.start + window.seconds)
    return Split([all_of_it], window.seek + window.size, False)


def split(decoded: DecodedWindow, window: Window, text: SpeechText) -> Split:
    """Split an output between consecutive timestamps. An unfinished last segment belongs to the next window."""
    zero = text.audio.timestamp_begin
    tokens = decoded.tokens
    is_timestamp = [text.audio.is_timestamp(token) for token in tokens]
    is_complete = is_timestamp[-2:] == [False, True]
    next_seek = window.seek + window.size

    segment = partial(segment_of, decoded, window, text)

    def seconds(timestamp: int) -> float:
        return (timestamp - zero) * SECONDS_PER_POSITION

    ends = [i for i in range(1, len(tokens)) if is_timestamp[i - 1] and is_timestamp[i]]
    if not ends:
        last = next((token for token in reversed(tokens) if text.audio.is_timestamp(token)), zero)
        duration = window.seconds if last == zero else seconds(last)
        return Split([segment(0, len(tokens), window.start, window.start + duration)], next_seek, is_complete)
    if is_complete:
        ends.append(len(tokens))
    else:
        next_seek = window.seek + (tokens[ends[-1] - 1] - zero) * FRAMES_PER_POSITION
    segments = [
        segment(first, last, window.start + seconds(tokens[first]), window.start + seconds(tokens[last - 1]))
        for first, last in pairwise([0, *ends])
    ]
    return Split(segments, next_seek, is_complete)


def end_of(segments: Sequence[Segment]) -> float | None:
    """Return the end of the last word, or of the last segment if there are no words."""
    words = [word for segment in segments for word in segment.words or ()]
    if words:
        return words[-1].end
    return segments[-1].end if segments else None
