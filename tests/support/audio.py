"""Audio files of several formats, written with PyAV."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CODECS = {"wav": "pcm_s16le", "flac": "flac", "mp3": "libmp3lame", "m4a": "aac", "ogg": "libopus"}  # by suffix


def sound(seconds: float, rate: int = 16000, channels: int = 1) -> NDArray[np.int16]:
    """Return a rising tone with pauses, and a little noise, as (channels, samples)."""
    time = np.arange(int(seconds * rate)) / rate
    tone = np.sin(2 * np.pi * (200 + 40 * time) * time) * (time % 1 < 0.7)
    noise = np.random.default_rng(channels).normal(scale=0.01, size=(channels, len(time)))
    return np.round((tone * 0.4 + noise) * 32767).astype(np.int16)


def write_audio(path: Path, samples: NDArray[np.int16], rate: int = 16000) -> Path:
    """Encode samples (channels, samples) in the format of the suffix."""
    import av

    layout = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}[len(samples)]
    with av.open(path, "w") as container:
        stream = container.add_stream(CODECS[path.suffix[1:]], rate=rate)
        stream.layout = layout
        for start in range(0, samples.shape[1], 4096):
            part = samples[:, start : start + 4096]
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(part.T.reshape(1, -1)), "s16", layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path
