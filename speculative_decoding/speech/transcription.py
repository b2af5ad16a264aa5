"""Transcribes one recording, window by window (openai-whisper 20250625, `transcribe`).

`Transcriber.attempts` yields one window at a time and receives the window's output, so that windows of several
recordings can be decoded together. This module is independent of the engine and the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..decoding.results import GenerationStats
from ..errors import InputError
from ..models.source import AudioFrames
from ..runs.places import atomic_file
from .formats import FORMATS, NO_OPTIONS, STREAMED, SubtitleOptions
from .hallucinations import cut_hallucinations, leading_silence
from .options import TranscriptionOptions
from .segments import FRAMES_PER_SECOND, DecodedWindow, Segment, Window, end_of, split, whole
from .speech_text import SpeechText
from .word_timestamps import TimedWord, add_words

HIGH_TEMPERATURE = 0.5  # text sampled above this temperature is not used as previous text for the next window


class WindowSource(Protocol):
    """A recording or a part of one. There are 100 frames per second."""

    @property
    def num_frames(self) -> int: ...

    def window(self, start: int, count: int, length: int) -> AudioFrames:
        """Return frames `start` to `start + count`, with silence after the end, then zeros up to `length` frames."""


@dataclass(frozen=True)
class Attempt:
    """A window to decode at a temperature, with some previous text as context.

    transcript: The tokens of all finished segments.
    """

    window: Window
    previous: Sequence[int]
    temperature: float
    transcript: Sequence[int] = ()


class ResumePoint(NamedTuple):
    """The state of a transcription between two windows, from which another `Transcriber` can continue.

    Args:
        language: The language of the speech.
        clip: The index of the clip that contains the next window.
        seek: The first frame of the next window.
        previous_from: Where the previous text for the next window begins, as an index into the tokens of the initial
            prompt and all segments.
        last_speech: The end of the last word, in seconds.
        segments: The finished segments.
    """

    language: str
    clip: int
    seek: int
    previous_from: int
    last_speech: float
    segments: Sequence[Segment]


Align = Callable[[Window, list[int]], list[TimedWord]]  # the window and its text tokens -> its words


@dataclass(frozen=True)
class Transcription:
    """A transcript.

    Args:
        text: The whole text.
        segments: The segments, in order.
        language: The language of the speech, such as "en".
        seconds: The duration of the recording.
        stats: Counts and times of all windows.
    """

    text: str
    segments: list[Segment]
    language: str
    seconds: float
    stats: GenerationStats

    def as_dict(self) -> dict[str, Any]:
        """Return the same fields as openai-whisper's `transcribe`, for JSON."""
        return {
            "text": self.text,
            "segments": [segment.as_dict() for segment in self.segments],
            "language": self.language,
        }

    def save(
        self,
        path: str | Path,
        *,
        max_line_width: int | None = None,
        max_line_count: int | None = None,
        max_words_per_line: int | None = None,
        highlight_words: bool = False,
    ) -> None:
        """Write one of openai-whisper's output files. The suffix of `path` selects .txt, .srt, .vtt, .tsv or .json.

        An existing file is replaced. For the options, see `SubtitleOptions`; they require word times.

        Raises:
            InputError: The suffix is not one of these, or an option cannot be used.
            OSError: The file cannot be written.
        """
        path = Path(path)
        name = path.suffix.lower().removeprefix(".")
        if name not in FORMATS:
            raise InputError(f"{path} has no suffix of a format", "path", f"choose .{', .'.join(FORMATS)}")
        options = SubtitleOptions(
            max_line_width=max_line_width,
            max_line_count=max_line_count,
            max_words_per_line=max_words_per_line,
            highlight_words=highlight_words,
        )
        options.require_effect([name])
        content = write(name, self, options)
        with atomic_file(path) as file:
            file.write(content.encode())


def write(name: str, result: Transcription, options: SubtitleOptions = NO_OPTIONS) -> str:
    """Return the content of one of openai-whisper's output files. name: one of `FORMATS`.

    Raises `InputError` if the options require word times, but the transcript has none.
    """
    if name == "json":
        return json.dumps(result.as_dict())
    return "".join(STREAMED[name](result.segments, options))


@dataclass(eq=False)
class Transcriber:
    """Transcribes one recording.

    Args:
        recording: The recording.
        text_tokens: Encodes and decodes text.
        language: The language of the speech.
        options: How to transcribe.
        align: Finds the times of words.
        max_previous: The maximum number of tokens in a window's previous text.
        opening: The frames of the first 30 seconds, if they have already been encoded to detect the language.
        resume_from: The point at which to resume, if a part of the recording has been transcribed with the same
            options.

    Attributes:
        segments: All finished segments.
        seek: The first frame that has not been transcribed.
        stats: Counts and times of all outputs. The caller adds them.
    """

    recording: WindowSource = field(repr=False)
    text_tokens: SpeechText = field(repr=False)
    language: str
    options: TranscriptionOptions
    align: Align = field(repr=False)
    max_previous: int = 223
    opening: AudioFrames | None = None
    resume_from: ResumePoint | None = field(default=None, repr=False)
    segments: list[Segment] = field(init=False, default_factory=list)
    seek: int = field(init=False, default=0)
    stats: GenerationStats = field(init=False, default_factory=GenerationStats)

    def __post_init__(self) -> None:
        self._initial = self.text_tokens.initial_prompt(self.options.initial_prompt)
        self._tokens = [*self._initial]  # tokens of the initial prompt and all segments
        self._previous_from = 0  # the index in `_tokens` at which the previous text for the next window begins
        self._last_speech = 0.0  # the end of the last word, in seconds
        self._clip = 0
        if self.resume_from is not None:
            _, self._clip, self.seek, self._previous_from, self._last_speech, segments = self.resume_from
            self.segments += segments
            self._tokens += [token for segment in segments for token in segment.tokens]

    @property
    def resume_point(self) -> ResumePoint:
        """The state between two windows."""
        state = self._clip, self.seek, self._previous_from, self._last_speech
        return ResumePoint(self.language, *state, tuple(self.segments))

    def result(self) -> Transcription:
        text = self.text_tokens.decode(self._tokens[len(self._initial) :])
        seconds = self.recording.num_frames / FRAMES_PER_SECOND
        return Transcription(text, self.segments, self.language, seconds, self.stats)

    def attempts(self) -> Generator[Attempt, DecodedWindow, None]:
        """Yield each attempt. Its output is passed back with `send`."""
        clips = self.options.clips(self.recording.num_frames)
        first_clip = self._clip
        for number, (start, end) in enumerate(clips[first_clip:], first_clip):
            self._clip = number
            if self.resume_from is None or number > first_clip:
                self.seek = start
            is_repeated = False
            while self.seek < end:
                window = self._window(end)
                decoded = yield from self._with_fallback(window)
                if has_no_speech(decoded, self.options):
                    self.seek += window.size
                else:
                    self._add(decoded, window)
                if self.seek <= window.seek and is_repeated:  # openai-whisper may repeat such a window forever
                    self.seek = window.seek + window.size
                is_repeated = self.seek <= window.seek

    def _window(self, end: int) -> Window:
        length = self.text_tokens.audio.window_frames
        size = min(length, self.recording.num_frames - self.seek, end - self.seek)
        if self.opening is not None and (self.seek, size) == (0, length):
            return Window(self.seek, size, self.opening)
        return Window(self.seek, size, self.recording.window(self.seek, size, length))

    def _with_fallback(self, window: Window) -> Generator[Attempt, DecodedWindow, DecodedWindow]:
        """Try the temperatures in turn until the output is neither repetitive nor unlikely, or the window is silent."""
        options = self.options
        previous = self._previous()
        transcript = self._tokens[len(self._initial) :]
        for temperature in options.temperatures:
            decoded = yield Attempt(window, previous, temperature, transcript)
            is_repetitive = (
                options.compression_ratio_threshold is not None
                and decoded.compression_ratio > options.compression_ratio_threshold
            )
            is_unlikely = options.logprob_threshold is not None and decoded.avg_logprob < options.logprob_threshold
            has_no_speech = (
                options.no_speech_threshold is not None and decoded.no_speech_prob > options.no_speech_threshold
            )
            if not (is_repetitive or is_unlikely) or (has_no_speech and is_unlikely):
                break
        return decoded

    def _previous(self) -> Sequence[int]:
        if not self.options.carry_initial_prompt:
            return self._tokens[self._previous_from :][-self.max_previous :]
        later = self._tokens[max(len(self._initial), self._previous_from) :]
        return [*self._initial, *later[-(self.max_previous - len(self._initial)) :]][-self.max_previous :]

    def _add(self, decoded: DecodedWindow, window: Window) -> None:
        """Add the segments of a window, and set `seek` to the start of the next window."""
        split_window = whole if self.options.without_timestamps else split
        segments, self.seek, is_complete = split_window(decoded, window, self.text_tokens)
        if self.options.word_timestamps and not self._add_words(segments, window, is_complete):
            return
        for number, segment in enumerate(segments, len(self.segments)):
            segment.id = number
            if segment.start == segment.end or not segment.text.strip():
                segment.text = ""
                segment.tokens = []
                segment.from_draft = ()
                segment.words = []
        self.segments += segments
        self._tokens += [token for segment in segments for token in segment.tokens]
        if not self.options.condition_on_previous_text or decoded.temperature > HIGH_TEMPERATURE:
            self._previous_from = len(self._tokens)

    def _add_words(self, segments: list[Segment], window: Window, is_complete: bool) -> bool:
        """Add words, and move `seek` to the end of the last word. Returns False if the window is dropped."""
        is_text = self.text_tokens.audio.is_text
        words = self.align(window, [token for segment in segments for token in segment.tokens if is_text(token)])
        add_words(segments, words, window, self.text_tokens, self.options, self._last_speech)
        last_end = end_of(segments)
        threshold = self.options.hallucination_silence_threshold
        if not is_complete and last_end is not None and last_end > window.start:
            has_silence = threshold is None or window.end - last_end > threshold
            self.seek = round(last_end * FRAMES_PER_SECOND) if has_silence else window.seek + window.size
        if threshold is not None:
            if gap := leading_silence(segments, window, threshold):
                self.seek = window.seek + round(gap * FRAMES_PER_SECOND)
                return False
            cut = cut_hallucinations(segments, window, threshold, self._last_speech, self.recording.num_frames)
            if cut is not None:
                self.seek = cut
        last_end = end_of(segments)
        if last_end is not None:
            self._last_speech = last_end
        return True


def has_no_speech(decoded: DecodedWindow, options: TranscriptionOptions) -> bool:
    """Whether to drop a window's text because the window probably contains no speech."""
    if options.no_speech_threshold is None or decoded.no_speech_prob <= options.no_speech_threshold:
        return False
    return options.logprob_threshold is None or decoded.avg_logprob <= options.logprob_threshold
