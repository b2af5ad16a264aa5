"""Cuts transcribed recordings into windows, the training examples for a speech model's draft."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..models.base import EncoderDecoder
from ..runs.log import Log, parse_line
from ..session import Session
from ..speech.recording import open_audio
from ..speech.segments import FRAMES_PER_POSITION, FRAMES_PER_SECOND
from ..speech.speech_text import SpeechText
from ..speech.window_requests import MAX_POSITIONS
from .outputs import LOG_FORMAT, Example, SpeechWindow, appended, checked_ids
from .recordings import Recording, Spoken

TIMED = 0.85  # share of outputs with timestamps
PROMPTED = 0.5  # share of windows whose prefix contains previous text
ROW = np.dtype("<f2")  # dtype of stored frames


@dataclass(frozen=True)
class WindowMaker:
    """Cuts recordings into windows of up to 30 s, each with as many complete segments as fit.

    Windows that are at least half full are padded to 30 s, as in a transcription. Shorter windows are not padded to
    30 s, because encoding takes most of the time.
    """

    model: EncoderDecoder
    text: SpeechText

    def windows(self, recording: Recording, previous: Sequence[int], rng: np.random.Generator) -> Iterator[Example]:
        """Yield a recording's windows. previous: the output ids of earlier recordings."""
        audio = self.text.audio
        longest = audio.window_frames
        mel = open_audio(recording.audio, [audio.num_mel_bins])
        rest = list(recording.segments)
        start = 0
        while rest:
            if frame(rest[0].end) > start + longest:  # skip a pause
                start = frame(rest[0].start)
            inside = [each for each in rest if frame(each.end) <= start + longest]
            rest = rest[max(1, len(inside)) :]  # leaves out a segment that is longer than a window
            end = min(frame(rest[0].start) if rest else mel.num_frames, mel.num_frames, start + longest)
            if not inside or end <= start:
                continue
            is_timed = rng.random() < TIMED
            prefix = self._prefix(recording.language, is_timed, previous, rng)
            output = [*self._ids(inside, start, is_timed), audio.end]
            if len(prefix) + len(output) <= (self.model.max_positions or len(prefix + output)):
                length = longest if 2 * (end - start) >= longest else end - start + (end - start) % 2
                frames = np.zeros((length, audio.num_mel_bins), ROW)
                frames[: end - start] = mel.frames(start, end - start)
                yield Example(SpeechWindow(frames), output, prefix)
            previous = [*previous, *output[:-1]]
            start = frame(inside[-1].end)

    def _prefix(self, language: str, is_timed: bool, previous: Sequence[int], rng: np.random.Generator) -> list[int]:
        audio = self.text.audio
        if audio.is_multilingual and language not in audio.languages:
            raise InputError(
                f"{language!r} is not a language of this model", "audio_manifest", "use a code such as en, or a name"
            )
        prefix = audio.start_tokens(language)
        if not is_timed:
            prefix.append(audio.no_timestamps)
        if previous and rng.random() < PROMPTED:
            half = (self.model.max_positions or MAX_POSITIONS) // 2
            prefix = [audio.previous, *previous[-int(rng.integers(1, half)) :], *prefix]
        return prefix

    def _ids(self, segments: Sequence[Spoken], window_start: int, is_timed: bool) -> list[int]:
        def timestamp(seconds: float) -> list[int]:
            position = round((seconds * FRAMES_PER_SECOND - window_start) / FRAMES_PER_POSITION)
            last = self.text.audio.window_frames // FRAMES_PER_POSITION
            return [self.text.audio.timestamp_begin + min(max(position, 0), last)] * is_timed

        ids: list[int] = []
        for each in segments:
            ids += [*timestamp(each.start), *self.text.encode(" " + each.text.strip()), *timestamp(each.end)]
        return ids


def frame(seconds: float) -> int:
    return round(FRAMES_PER_SECOND * seconds)


def write_windows(
    session: Session,
    recordings: Sequence[Recording],
    folder: Path,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Example]:
    """Cut the recordings that the folder lacks into windows. Returns the windows of all recordings.

    The frames are appended to frames.bin, and a record for each recording to windows.jsonl. A killed run resumes from
    these two files. `progress` receives the number of finished recordings.
    """
    audio = session.model.audio
    assert audio is not None
    maker = WindowMaker(session.model, SpeechText(session.tokenizer, audio))
    with Log.open(folder / "windows.jsonl", LOG_FORMAT, {}) as log:
        windows = [*log.records(partial(parse_windows, vocab_size=session.model.config.vocab_size))]
        previous = [token for lines in windows for _, _, output in lines for token in output[:-1]]
        position = sum(count for lines in windows for count, _, _ in lines)
        with appended(folder / "frames.bin", position * audio.num_mel_bins * ROW.itemsize) as frames_file:
            for index in range(len(windows), len(recordings)):
                lines = []
                rng = np.random.default_rng([seed, 2, index])
                for each in maker.windows(recordings[index], previous, rng):
                    assert isinstance(each.source, SpeechWindow)
                    frames_file.write(each.source.frames.tobytes())
                    lines.append((len(each.source.frames), [*each.prefix], [*each.output]))
                    previous += each.output[:-1]
                frames_file.flush()
                os.fsync(frames_file.fileno())  # must be on disk before the log records it
                log.append(lines)
                windows.append(lines)
                progress(index + 1)

    examples = []
    frames = np.memmap(folder / "frames.bin", ROW, "r").reshape(-1, audio.num_mel_bins)
    position = 0
    for count, prefix, output in chain.from_iterable(windows):
        examples.append(Example(SpeechWindow(frames[position : position + count]), output, prefix))
        position += count
    return examples


def parse_windows(line: bytes, vocab_size: int) -> list[tuple[int, list[int], list[int]]] | None:
    """Return the frame count, prefix and output of each window in a recording, or None for a damaged line."""
    try:
        return [(int(n), checked_ids(a, vocab_size), checked_ids(b, vocab_size)) for n, a, b in parse_line(line)]
    except (OverflowError, TypeError, ValueError):
        return None
