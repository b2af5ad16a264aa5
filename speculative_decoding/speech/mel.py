"""Whisper's front end: the log-mel frames of openai-whisper (audio.py, `log_mel_spectrogram`).

Each frame depends on only 25 ms of audio. Whisper then scales all frames by the largest value in the whole recording;
see `normalized`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .audio_file import SAMPLE_RATE, Samples

FFT_SAMPLES = 400
HOP_SAMPLES = 160  # between the starts of frames, for 100 frames per second
SILENCE = -10.0  # log10 of the minimum power
RANGE = 8.0  # smaller powers are raised to this many orders of magnitude below the largest one

Frames = NDArray[np.float32]  # (frames, mel bins)


class LogMel:
    """Computes the log-mel powers of a signal incrementally.

    Frame t is centered at sample 160 t. The start of the signal is padded with its mirror image, as in torch.stft.

    num_mel_bins: 80, or 128 for large-v3. If there are several numbers, each frame contains the bins for each of them,
        side by side.
    """

    def __init__(self, num_mel_bins: Sequence[int]) -> None:
        self._filters = np.concatenate([mel_filters(bins) for bins in num_mel_bins], axis=1)
        # Rounded as in torch.hann_window, because a different rounding would change the weakest bins
        self._window = np.float32(0.5) - np.float32(0.5) * np.cos(
            np.arange(FFT_SAMPLES, dtype=np.float32) * np.float32(2 * np.pi / FFT_SAMPLES)
        )
        self._pending = np.empty(0, np.float32)  # samples for frames that are not complete yet
        self._has_mirror = False

    def append(self, samples: Samples) -> Frames:
        """Add samples, and return the frames (frames, bins) that they complete."""
        self._pending = np.concatenate([self._pending, samples])
        half = FFT_SAMPLES // 2
        if not self._has_mirror and len(self._pending) > half:
            self._pending = np.concatenate([self._pending[half:0:-1], self._pending])
            self._has_mirror = True
        count = max(0, (len(self._pending) - FFT_SAMPLES) // HOP_SAMPLES + 1)
        if count == 0:
            return np.empty((0, self._filters.shape[1]), np.float32)
        pieces = np.lib.stride_tricks.sliding_window_view(self._pending, FFT_SAMPLES)[::HOP_SAMPLES][:count]
        self._pending = self._pending[count * HOP_SAMPLES :]
        spectrum = np.fft.rfft(pieces * self._window)
        power = spectrum.real**2 + spectrum.imag**2
        frames: Frames = np.log10(np.maximum(power @ self._filters, np.float32(10**SILENCE)))
        return frames

    def finish(self) -> Frames:
        """Return the last frames, which contain the end of the signal, followed by silence."""
        return self.append(np.zeros(FFT_SAMPLES, np.float32))


def normalized(frames: Frames, largest: float) -> Frames:
    """Scale log-mel frames as Whisper does. largest: the largest value in the whole recording."""
    return (np.maximum(frames, np.float32(largest - RANGE)) + np.float32(4)) / np.float32(4)


def mel_filters(num_mel_bins: int) -> Frames:
    """Return the triangular filters (201, bands) on Slaney's mel scale, each with the same area.

    This is librosa.filters.mel(sr=16000, n_fft=400, n_mels=num_mel_bins), implemented with NumPy.
    """
    linear_hz, hz_per_mel, mels_per_log = 1000.0, 200 / 3, 27 / np.log(6.4)  # linear below 1 kHz, then logarithmic
    linear_mels = linear_hz / hz_per_mel
    top = linear_mels + mels_per_log * np.log(SAMPLE_RATE / 2 / linear_hz)
    mels = np.linspace(0, top, num_mel_bins + 2)
    edges = np.where(mels < linear_mels, mels * hz_per_mel, linear_hz * np.exp((mels - linear_mels) / mels_per_log))
    hz = np.linspace(0, SAMPLE_RATE / 2, FFT_SAMPLES // 2 + 1)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    triangles = np.minimum((hz - low) / (middle - low), (high - hz) / (high - middle))
    return (np.maximum(triangles, 0) * 2 / (high - low)).astype(np.float32)
