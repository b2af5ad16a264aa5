"""Log-mel frames: openai-whisper's goldens, and independence from blocks and the order of reading."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding import InputError
from speculative_decoding.speech.mel import mel_filters
from speculative_decoding.speech.recording import Recording, open_audio
from tests.support.paths import ROOT

JFK = ROOT / "data" / "jfk.wav"
GOLDENS = np.load(ROOT / "tests/parity/goldens/log_mel.npz")


def noise(num_samples: int) -> NDArray[np.float32]:
    return np.random.default_rng(num_samples).normal(size=num_samples).astype(np.float32) / 10


def reference(samples: NDArray[np.float32], bands: int, count: int) -> NDArray[np.float64]:
    """The first `count` frames at once in float64, as openai-whisper defines them."""
    padded = np.pad(np.pad(samples.astype(np.float64), (0, 480000)), 200, mode="reflect")
    starts = range(0, count * 160, 160)
    frames = np.stack([padded[start : start + 400] for start in starts])
    power = np.abs(np.fft.rfft(frames * np.hanning(401)[:-1])) ** 2 @ mel_filters(bands)
    log = np.log10(np.maximum(power, 1e-10))
    return (np.maximum(log, log.max() - 8) + 4) / 4


@pytest.mark.parametrize("bands", [80, 128])
def test_frames_equal_openai_whispers(bands: int) -> None:
    """openai-whisper's own error is about 1e-5 in the weakest bands, where MKL's float32 transform rounds."""
    mel = open_audio(JFK, [bands])
    assert (mel.num_frames, mel.seconds) == (1100, 11.0)
    np.testing.assert_allclose(mel.frames(0, 4100)[GOLDENS["frames"]], GOLDENS[f"mel_{bands}"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_samples", [40, 160, 200, 201, 202, 399, 1600, 4321])
@pytest.mark.parametrize("size", [7, 201, 100000])
def test_samples_may_arrive_in_pieces_of_any_size(num_samples: int, size: int) -> None:
    samples, mel = noise(num_samples), Recording([80])
    for start in range(0, num_samples, size):
        mel.append(samples[start : start + size])
    mel.finish()
    assert mel.num_frames == num_samples // 160
    count = mel.num_frames + 5
    np.testing.assert_allclose(mel.frames(0, count), reference(samples, 80, count), atol=1e-5)


def test_the_order_of_reading_does_not_change_frames() -> None:
    mel = open_audio(noise(16000), [80])
    frames = mel.frames(0, 130)
    for start, count in ((7, 9), (40, 30), (90, 40), (95, 3), (2, 128), (129, 1), (0, 0)):
        assert np.array_equal(mel.frames(start, count), frames[start : start + count])


def test_silence_has_the_value_of_openai_whisper() -> None:
    np.testing.assert_allclose(open_audio(np.zeros(32000, np.float32), [80]).frames(0, 3000), -1.5, atol=1e-6)


def test_a_long_recording_is_refused_before_it_is_read_to_its_end() -> None:
    with pytest.raises(InputError, match="longer than 3 seconds"):
        open_audio(JFK, [80], max_seconds=3)
    assert open_audio(JFK, [80], max_seconds=11).seconds == 11


@pytest.mark.parametrize("bands", [80, 128])
def test_filters_equal_those_of_transformers(bands: int) -> None:
    audio_utils = pytest.importorskip("transformers.audio_utils")
    filters = audio_utils.mel_filter_bank(201, bands, 0.0, 8000.0, 16000, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_filters(bands), filters, atol=1e-8)
