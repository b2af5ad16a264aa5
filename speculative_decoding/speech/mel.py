"""Log-mel spectrograms as openai-whisper computes them, streamed in bounded memory.

Whisper scales a spectrogram by its largest value in the whole recording. A first pass finds this value and the length;
the second pass yields frames. The values follow `log_mel_spectrogram` in openai-whisper's audio.py.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .audio_file import SAMPLE_RATE, Audio, AudioSource, open_source

FFT_SAMPLES = 400
HOP_SAMPLES = 160  # between frames: 100 frames per second
WINDOW_FRAMES = 3000  # that Whisper reads at once: 30 s
SILENCE = -10.0  # log10 of the smallest power
RANGE = 8.0  # smaller powers are raised to this many powers of ten below the largest one

Frames = NDArray[np.float32]  # (frames, mel bands)


class MelSpectrogram:
    """The log-mel frames of one recording, followed by 30 s of silence. `opening` and `open_audio` make one.

    Args:
        source: The samples.
        filters: See `mel_filters`.
        num_samples: Of the source.
        peak: The largest value of all frames.
    """

    def __init__(self, source: AudioSource, filters: Frames, num_samples: int, peak: float) -> None:
        self._source = source
        self._filters = filters
        self._num_samples = num_samples
        self._peak = peak
        self._start = 0  # the first frame in `_held`
        self._held: Frames = np.empty((0, filters.shape[1]), np.float32)
        self._blocks = self._read()

    @classmethod
    def opening(
        cls, source: AudioSource, num_mel_bins: int, max_seconds: float | None = None
    ) -> Generator[None, None, MelSpectrogram]:
        """Read a recording once, for its length and its largest value. Yields after each block, and returns it.

        Args:
            source: The samples, which will be read once more for the frames.
            num_mel_bins: 80, or 128 for large-v3.
            max_seconds: A longer recording raises `InputError`.
        """
        filters = mel_filters(num_mel_bins)
        num_samples = 0

        def counted() -> Iterator[NDArray[np.float32]]:
            nonlocal num_samples
            for block in source.blocks():
                num_samples += len(block)
                if max_seconds is not None and num_samples > max_seconds * SAMPLE_RATE:
                    raise InputError(f"{source.name}: longer than {max_seconds:g} seconds; split it")
                yield block
            if num_samples < HOP_SAMPLES:
                raise InputError(f"{source.name}: no sound (got {num_samples} samples at 16 kHz); use another file")

        peak = SILENCE
        for frames in log_mel_blocks(counted(), filters):
            peak = max(peak, float(frames.max()))
            yield
        return cls(source, filters, num_samples, peak)

    @property
    def num_frames(self) -> int:
        """Frames of the recording, without the silence."""
        return self._num_samples // HOP_SAMPLES

    @property
    def seconds(self) -> float:
        return self._num_samples / SAMPLE_RATE

    def frames(self, start: int, count: int) -> Frames:
        """Return frames `start` to `start + count`, with silence after the recording.

        Reading onward, or the last range again, is fast. Reading earlier frames reads the recording from its start.
        """
        if start < self._start:
            self._start, self._held, self._blocks = 0, self._held[:0], self._read()
        while self._end < start + count:
            self._read_block(start, start + count)
        frames = self._held[start - self._start :][:count]
        return (np.maximum(frames, np.float32(self._peak - RANGE)) + np.float32(4)) / np.float32(4)

    def read_ahead(self, start: int, stop: int) -> Generator[None, None, None]:
        """Read up to frame `stop` of the recording, so that `frames` need not read. Yields after each block.

        start: the first frame that is still needed; `frames` must have been called with earlier ones only.
        """
        stop = min(stop, self.num_frames)
        while self._end < stop:
            self._read_block(start, stop)
            yield

    @property
    def _end(self) -> int:
        """The first frame that has not been read."""
        return self._start + len(self._held)

    def _read_block(self, start: int, stop: int) -> None:
        """Read some more frames, or silence up to frame `stop` after the end. Forgets frames before `start`."""
        new = next(self._blocks, None)
        if new is None:
            new = np.full((stop - self._end, self._held.shape[1]), SILENCE, np.float32)
        dropped = min(start - self._start, len(self._held))
        self._held = np.concatenate([self._held[dropped:], new])
        self._start += dropped

    def _read(self) -> Iterator[Frames]:
        return log_mel_blocks(self._source.blocks(), self._filters)


def open_audio(audio: Audio, num_mel_bins: int, max_seconds: float | None = None) -> MelSpectrogram:
    """Open a recording. audio: see `open_source`. Raises `InputError`."""
    opening = MelSpectrogram.opening(open_source(audio), num_mel_bins, max_seconds)
    while True:
        try:
            next(opening)
        except StopIteration as end:
            return cast(MelSpectrogram, end.value)


def log_mel_blocks(blocks: Iterable[NDArray[np.float32]], filters: Frames) -> Iterator[Frames]:
    """Yield the logarithms of the mel powers, (frames, bands), of a signal that continues with silence.

    Frame t is centered at sample 160 t. The samples before the first one are its mirror image, as in torch.stft.
    The frames end when the signal no longer reaches them.

    Args:
        blocks: Samples; at least 201 in each but the last.
        filters: (201, bands).
    """
    half = FFT_SAMPLES // 2
    # rounded as torch.hann_window rounds it, which changes the weakest bands
    window = np.float32(0.5) - np.float32(0.5) * np.cos(
        np.arange(FFT_SAMPLES, dtype=np.float32) * np.float32(2 * np.pi / FFT_SAMPLES)
    )
    rest: NDArray[np.float32] | None = None
    for block in chain(blocks, [np.zeros(FFT_SAMPLES, np.float32)]):
        if rest is None:
            mirror = block[1 : half + 1][::-1]
            rest = np.concatenate([np.zeros(half - len(mirror), np.float32), mirror])
        rest = np.concatenate([rest, block])
        count = (len(rest) - FFT_SAMPLES) // HOP_SAMPLES + 1
        if count > 0:
            frames = np.lib.stride_tricks.sliding_window_view(rest, FFT_SAMPLES)[::HOP_SAMPLES][:count]
            spectrum = np.fft.rfft(frames * window)
            power = spectrum.real**2 + spectrum.imag**2
            yield np.log10(np.maximum(power @ filters, np.float32(10**SILENCE)))
            rest = rest[count * HOP_SAMPLES :]


def mel_filters(num_mel_bins: int) -> Frames:
    """Return the triangular filters (201, bands) on Slaney's mel scale, each with the same area.

    librosa.filters.mel(sr=16000, n_fft=400, n_mels=num_mel_bins) in numpy.
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
