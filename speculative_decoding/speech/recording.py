"""A recording: it is read once, its log-mel frames are stored, and windows are cut from them.

Frames are stored unscaled, so that they can be computed before the recording ends. Whisper scales frames by the largest
value in the whole recording, so each window is scaled when it is cut. If voice detection is on, only the speech is
stored, as if it were the whole recording.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Sequence
from typing import BinaryIO, cast

import mlx.core as mx
import numpy as np

from ..errors import InputError
from ..models.source import AudioFrames
from .audio_file import BLOCK_SAMPLES, SAMPLE_RATE, Audio, AudioSource, Samples, open_source
from .mel import HOP_SAMPLES, SILENCE, Frames, LogMel, normalized
from .voice import SpeechTimes, VoiceFilter, VoiceOptions

ITEM = np.dtype(np.float32)
IN_MEMORY = 16 << 20  # bytes of frames, about 8 minutes; a longer recording uses a temporary file
VOICE_STEP = 2 * SAMPLE_RATE  # samples, for which voice detection takes about 60 ms


class Recording:
    """A recording's frames, followed by silence. `open_audio` and `opening` create recordings from files or samples.

    Args:
        num_mel_bins: The number of mel bins for the target, then for each other model that reads the recording.
        name: The name of the recording in messages.
        file: Stores the frames (default: memory, or an unnamed temporary file for a long recording).
        voice: What counts as speech; all other audio is left out. None keeps everything.

    Attributes:
        num_samples: The length of the recording before voice detection.
        speech: The times of the kept audio; set by `finish` if voice detection is on, otherwise None.
    """

    def __init__(
        self,
        num_mel_bins: Sequence[int],
        name: str = "audio",
        file: BinaryIO | None = None,
        voice: VoiceOptions | None = None,
    ) -> None:
        self._file = file or cast(BinaryIO, tempfile.SpooledTemporaryFile(IN_MEMORY))  # noqa: SIM115
        self.name = name
        self.num_samples = 0
        self.speech: SpeechTimes | None = None
        self._voice = None if voice is None else VoiceFilter(voice)
        self._num_kept = 0
        self._bins = num_mel_bins
        self._log_mel = LogMel(num_mel_bins)
        self._largest = np.full(sum(num_mel_bins), SILENCE, np.float32)  # the largest value in each bin

    def __del__(self) -> None:
        self._file.close()

    def append(self, samples: Samples) -> None:
        """Append samples at 16 kHz."""
        self.num_samples += len(samples)
        self._add(samples if self._voice is None else self._voice.append(samples))

    def finish(self) -> None:
        """Compute the last frames, which need the silence after the recording."""
        if self._voice is not None:
            samples, self.speech = self._voice.finish()
            self._add(samples)
        self._store(self._log_mel.finish())

    def _add(self, samples: Samples) -> None:
        self._num_kept += len(samples)
        self._store(self._log_mel.append(samples))

    def _store(self, frames: Frames) -> None:
        if not len(frames):
            return
        self._largest = np.maximum(self._largest, frames.max(axis=0))
        try:
            self._file.seek(0, os.SEEK_END)
            self._file.write(frames.tobytes())
            self._file.flush()
        except OSError as error:
            raise InputError(
                f"{self.name}: {tempfile.gettempdir()} cannot keep its frames ({error.strerror})",
                way_out="let TMPDIR name a folder with more space",
            ) from error

    @property
    def num_frames(self) -> int:
        """The number of frames, excluding the silence after the recording."""
        return self._num_kept // HOP_SAMPLES

    @property
    def seconds(self) -> float:
        return self.num_samples / SAMPLE_RATE

    def frames(self, start: int, count: int) -> Frames:
        """Return frames `start` to `start + count` for the target, (count, mel bins)."""
        return self._scaled(start, count)[0]

    def window(self, start: int, count: int, length: int) -> AudioFrames:
        """Return frames `start` to `start + count` for all models, then zeros up to `length` frames."""
        return audio_frames(self._scaled(start, count), length)

    def _scaled(self, start: int, count: int) -> list[Frames]:
        """Return the scaled frames for each model."""
        width = sum(self._bins)  # the bins of all models are stored side by side
        self._file.seek(start * width * ITEM.itemsize)
        kept = np.frombuffer(self._file.read(count * width * ITEM.itemsize), ITEM).reshape(-1, width)
        frames = np.pad(kept, [(0, count - len(kept)), (0, 0)], constant_values=SILENCE)
        return each_model(frames, self._largest, self._bins)


def each_model(frames: Frames, largest: Frames, num_mel_bins: Sequence[int]) -> list[Frames]:
    """Return the scaled frames for each model. largest: the largest value in each bin, which determines the scale."""
    borders = np.cumsum(num_mel_bins)[:-1]
    parts = zip(np.split(frames, borders, axis=1), np.split(largest, borders), strict=True)
    return [normalized(own, float(own_largest.max())) for own, own_largest in parts]


def audio_frames(frames: Sequence[Frames], length: int) -> AudioFrames:
    """Return a window: the frames for each model, (count, mel bins), then zeros up to `length` frames."""
    padded = (mx.array(np.pad(own, [(0, length - len(own)), (0, 0)])) for own in frames)
    target, *others = padded
    return AudioFrames(target, others)


def frame_bytes_per_second(num_mel_bins: Sequence[int]) -> int:
    return SAMPLE_RATE // HOP_SAMPLES * sum(num_mel_bins) * ITEM.itemsize


def opening(
    source: AudioSource,
    num_mel_bins: Sequence[int],
    max_seconds: float | None = None,
    file: BinaryIO | None = None,
    voice: VoiceOptions | None = None,
) -> Generator[None, None, Recording]:
    """Read a recording and return it. Yields after each block, or every two seconds of audio with voice detection.

    Args:
        source: The samples, which are read once.
        num_mel_bins: See `Recording`.
        max_seconds: A longer recording raises `InputError`.
        file: See `Recording`.
        voice: See `Recording`.
    """
    recording = Recording(num_mel_bins, source.name, file, voice)
    step = BLOCK_SAMPLES if voice is None else VOICE_STEP
    for samples in source.blocks():
        if max_seconds is not None and recording.num_samples + len(samples) > max_seconds * SAMPLE_RATE:
            raise InputError(f"{source.name}: longer than {max_seconds:g} seconds; split it")
        for start in range(0, len(samples), step):
            recording.append(samples[start : start + step])
            yield
    if recording.num_samples < HOP_SAMPLES:
        raise InputError(f"{source.name}: no sound (got {recording.num_samples} samples at 16 kHz); use another file")
    recording.finish()
    return recording


def open_audio(
    audio: Audio | Recording,
    num_mel_bins: Sequence[int],
    max_seconds: float | None = None,
    voice: VoiceOptions | None = None,
    track: int | None = None,
) -> Recording:
    """Read a recording. audio, track: see `open_source`; a `Recording` is returned unchanged. Raises `InputError`."""
    if isinstance(audio, Recording):
        for option, has_no_effect in (("vad", voice is not None and audio.speech is None), ("audio_track", track)):
            if has_no_effect:
                raise InputError("has no effect on a recording that has been read", option, "give its file or samples")
        return audio
    steps = opening(open_source(audio, track), num_mel_bins, max_seconds, voice=voice)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(Recording, end.value)
