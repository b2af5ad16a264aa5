"""The audio of live speech: samples that have not been processed yet, and the frames of the current window."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ...models.source import AudioFrames
from ..audio_file import SAMPLE_RATE, Samples
from ..mel import HOP_SAMPLES, SILENCE, LogMel
from ..recording import audio_frames, each_model

LOUDNESS_SAMPLES = SAMPLE_RATE // 50  # number of samples whose root mean square is the loudness
SILENT = 10 ** (-60 / 20)  # -60 dBFS


class LiveRecording:
    """Live speech. A second thread may call `append` and `finish`; all other methods must be called by a single thread.

    `process` computes the frames of the samples that have arrived. Frames are numbered from the start of the stream.

    num_mel_bins: See `Recording`.

    Attributes:
        is_finished: Whether no more samples will arrive.
        num_processed: The number of samples that have been processed.
    """

    def __init__(self, num_mel_bins: Sequence[int]) -> None:
        self.is_finished = False
        self.num_processed = 0
        self._waiting: deque[Samples] = deque()
        self._num_arrived = 0
        self._bins = num_mel_bins
        self._log_mel = LogMel(num_mel_bins)
        self._frames = np.empty((0, sum(num_mel_bins)), np.float32)
        self._first = 0  # the number of the first kept frame

    def append(self, samples: Samples) -> None:
        """Append samples, (N,) from -1 to 1, at 16 kHz."""
        self._waiting.append(samples)
        self._num_arrived += len(samples)

    def finish(self) -> None:
        self.is_finished = True

    @property
    def waiting_seconds(self) -> float:
        """The duration of the audio that has not been processed yet."""
        return (self._num_arrived - self.num_processed) / SAMPLE_RATE

    @property
    def is_all_processed(self) -> bool:
        return self.is_finished and self.num_processed == self._num_arrived

    @property
    def num_frames(self) -> int:
        """The number of frames that have been computed."""
        return self.num_processed // HOP_SAMPLES

    def process(self, last_frame: int) -> bool:
        """Compute the frames up to `last_frame`. Returns whether their audio is loud enough to contain speech."""
        samples = self._take(last_frame * HOP_SAMPLES - self.num_processed)
        self.num_processed += len(samples)
        new = [self._frames, self._log_mel.append(samples)]
        if self.is_all_processed:
            new.append(self._log_mel.finish())
        self._frames = np.concatenate(new)
        return is_loud(samples)

    def _take(self, count: int) -> Samples:
        """Remove and return up to `count` waiting samples."""
        taken = [np.empty(0, np.float32)]
        while count > 0 and self._waiting:
            samples = self._waiting.popleft()
            if len(samples) > count:
                self._waiting.appendleft(samples[count:])
            taken.append(samples[:count])
            count -= len(taken[-1])
        return np.concatenate(taken)

    def drop_before(self, frame: int) -> None:
        self._frames = self._frames[frame - self._first :].copy()
        self._first = frame

    def window(self, start: int, count: int, length: int) -> AudioFrames:
        """Return frames that have not been dropped; see `Recording.window`.

        The frames are scaled by their own largest value, because that of the whole recording is not known yet.
        """
        kept = self._frames[start - self._first :][:count]
        frames = np.pad(kept, [(0, count - len(kept)), (0, 0)], constant_values=SILENCE)
        return audio_frames(each_model(frames, frames.max(axis=0), self._bins), length)


def is_loud(samples: Samples) -> bool:
    padded = np.pad(samples, (0, -len(samples) % LOUDNESS_SAMPLES))
    mean_squares = np.square(padded.reshape(-1, LOUDNESS_SAMPLES)).mean(axis=1)
    return bool(mean_squares.max(initial=0.0) >= SILENT**2)
