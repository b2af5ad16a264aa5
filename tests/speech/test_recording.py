"""A recording is read once; its frames depend neither on where they are kept nor on how the samples arrive."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding import InputError
from speculative_decoding.speech import recording
from speculative_decoding.speech.audio_file import AudioArray, AudioSource, BegunSource
from speculative_decoding.speech.recording import Recording, frame_bytes_per_second, open_audio, opening

SAMPLES = np.random.default_rng(0).normal(size=48_000).astype(np.float32) / 10


class Source:
    """Samples that become louder. Counts how often they are read."""

    name = "sound"

    def __init__(self) -> None:
        self.readings = 0

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        self.readings += 1
        yield from np.split(SAMPLES * np.linspace(0.01, 1, len(SAMPLES), dtype=np.float32), 3)


def opened(source: AudioSource, **options: Any) -> Recording:
    steps = opening(source, options.pop("bins", [80]), **options)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Recording = end.value
            return found


def test_windows_anywhere_need_one_reading() -> None:
    source = Source()
    found = opened(source)
    whole = found.frames(0, 400)
    for start in (300, 0, 150):
        window = found.window(start, 100, 120)
        assert len(window) == 60
        frames = np.array(window.frames)
        assert np.array_equal(frames[:100], whole[start : start + 100]) and not frames[100:].any()
    assert source.readings == 1 and found.num_frames == 300 and open_audio(found, [80]) is found
    assert whole.max() - whole.min() <= 2 + 1e-6 and whole[:300].max() == whole.max()  # 8 powers of ten, divided by 4


def test_a_recording_that_was_begun_is_read_on() -> None:
    source = Source()
    assert np.array_equal(opened(BegunSource(source)).frames(0, 400), opened(Source()).frames(0, 400))
    assert source.readings == 1
    with pytest.raises(InputError, match="contains no sound"):
        BegunSource(AudioArray(np.empty(0)))


def test_a_long_recording_is_in_a_file_without_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    expected = opened(Source()).frames(0, 400)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(recording, "IN_MEMORY", 1000)
    found = opened(Source())
    assert found._file._rolled and not [*tmp_path.iterdir()]  # type: ignore[attr-defined]
    assert np.array_equal(found.frames(0, 400), expected)
    file = found._file
    del found
    assert file.closed


def test_a_full_disk_is_one_line() -> None:
    class Full(BytesIO):
        def write(self, content: Any) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="sound: .* cannot keep its frames .No space left on device.; let TMPDIR"):
        opened(Source(), file=Full())


def test_models_with_other_numbers_of_mel_bins_read_the_same_window() -> None:
    window = opened(Source(), bins=[80, 128]).window(100, 100, 100)
    for bins in (80, 128):
        alone = opened(Source(), bins=[bins]).window(100, 100, 100).of(bins)
        np.testing.assert_allclose(np.array(window.of(bins)), np.array(alone), atol=1e-6)
    assert window.frames.shape == (100, 80)
    with pytest.raises(InputError, match="has no frames with 64 mel bins"):
        window.of(64)


def test_a_window_of_a_growing_recording_is_scaled_by_the_largest_value_so_far() -> None:
    growing = Recording([80])
    growing.append(SAMPLES[:16_000] / 1000)
    before = growing.frames(0, 90)
    np.testing.assert_allclose(before, open_audio(SAMPLES[:16_000] / 1000, [80]).frames(0, 90), atol=1e-5)
    growing.append(SAMPLES[16_000:])
    growing.finish()
    after = growing.frames(0, 90)
    assert after.min() > before.min()  # quiet frames are raised, because a louder one followed


def test_bytes_of_frames_are_counted() -> None:
    """115 MB per hour with 80 bins, 184 MB with 128."""
    assert frame_bytes_per_second([80]) * 3600 == 115_200_000
    assert frame_bytes_per_second([80, 128]) * 3600 == 115_200_000 + 184_320_000
    file = BytesIO()
    found = opened(Source(), file=file)
    assert found.seconds == 3 and file.getbuffer().nbytes == pytest.approx(frame_bytes_per_second([80]) * 3, rel=0.02)
