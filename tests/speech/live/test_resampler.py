"""Live speech at 24 kHz."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from speculative_decoding import InputError
from speculative_decoding.speech.audio_file import AudioFile, Samples
from speculative_decoding.speech.live import resampler
from speculative_decoding.speech.live.resampler import Resampler

RATE = 24_000
SPEECH = (np.random.default_rng(0).normal(scale=5000, size=30_001)).astype(np.int16)


def resampled(pieces: list[NDArray[np.int16]]) -> Samples:
    each = Resampler(RATE)
    return np.concatenate([*(each.append(piece) for piece in pieces if len(piece)), each.finish()])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(SPEECH)), st.lists(st.integers(0, len(SPEECH)), max_size=20))
def test_no_division_changes_the_samples(size: int, cuts: list[int]) -> None:
    speech = SPEECH[:size]
    pieces = np.split(speech, sorted(cut for cut in cuts if cut <= size))
    np.testing.assert_array_equal(resampled(pieces), resampled([speech]))


def test_samples_are_those_of_a_file() -> None:
    content = io.BytesIO()
    with wave.open(content, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(SPEECH.astype("<i2").tobytes())
    file = np.concatenate([*AudioFile(content.getvalue(), "file").blocks()])
    np.testing.assert_array_equal(resampled(np.array_split(SPEECH, 7)), file)
    assert len(file) == pytest.approx(len(SPEECH) * 2 / 3, abs=1)


def test_a_missing_pyav_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resampler, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="24000 Hz requires PyAV; run pip install"):
        Resampler(RATE)
