"""Live audio has the frames of a recording, however it arrives, and keeps only those of its window."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from speculative_decoding.speech.live.recording import SILENT, LiveRecording
from speculative_decoding.speech.mel import normalized
from speculative_decoding.speech.recording import Recording
from tests.support.speech import noise

SAMPLES = noise(1, 2.0)
ALL = 10**9  # a frame after all others


def processed(borders: list[int], *, last_frame: int = ALL) -> LiveRecording:
    """Process the samples between these borders one after the other."""
    live = LiveRecording([80, 128])
    for start, end in pairwise([0, *borders, len(SAMPLES)]):
        live.append(SAMPLES[start:end])
        live.process(last_frame)
    return live


@pytest.mark.parametrize("borders", [[], [1, 2, 199, 200, 201, 700], [16_000], [*range(7, 32_000, 997)]])
def test_frames_equal_those_of_a_recording(borders: list[int]) -> None:
    whole = Recording([80, 128])
    whole.append(SAMPLES)
    whole.finish()
    live = processed(borders)
    live.append(np.empty(0, np.float32))
    live.finish()
    live.process(ALL)
    assert live.is_all_processed and live.num_frames == whole.num_frames == 200
    found, expected = (each.window(0, 200, 240) for each in (live, whole))
    for one, other in zip([found.frames, *found.others], [expected.frames, *expected.others], strict=True):
        assert np.allclose(np.array(one), np.array(other), atol=1e-5)  # sums over other numbers of frames


def test_each_window_is_scaled_by_its_own_largest_value() -> None:
    quiet = SAMPLES / 1000
    live = LiveRecording([80])
    live.append(np.concatenate([SAMPLES, quiet]))
    live.process(ALL)
    alone = LiveRecording([80])
    alone.append(quiet)
    alone.process(ALL)
    found, expected = np.array(live.window(250, 100, 120).frames), np.array(alone.window(50, 100, 120).frames)
    assert np.allclose(found, expected, atol=1e-4) and not found[100:].any()
    assert found[:100].max() == pytest.approx(
        normalized(live._frames[250:350], float(live._frames[250:350].max())).max()
    )


def test_only_the_frames_and_samples_of_the_window_are_kept() -> None:
    live = LiveRecording([80])
    sizes = []
    for second in range(300):
        live.append(noise(second, 1.0))
        live.process(ALL)
        live.drop_before(max(0, live.num_frames - 500))
        sizes.append(live._frames.nbytes)
    assert live.num_frames == 30_000 and sizes[-1] == max(sizes) == sizes[20]


def test_processing_ends_at_a_frame_and_later_samples_wait() -> None:
    live = LiveRecording([80])
    live.append(SAMPLES[:20_000])
    live.append(SAMPLES[20_000:])
    live.process(150)
    assert live.num_frames == 150 and live.waiting_seconds == pytest.approx(0.5)
    live.finish()
    assert not live.is_all_processed
    live.process(ALL)
    assert live.is_all_processed
    live.drop_before(100)
    expected = processed([]).window(100, 95, 100)
    assert np.allclose(np.array(live.window(100, 95, 100).frames), np.array(expected.frames), atol=1e-5)


@pytest.mark.parametrize(("level", "expected"), [(0.0, False), (0.9 * SILENT, False), (1.1 * SILENT, True)])
def test_sound_below_60_dbfs_is_silence(level: float, expected: bool) -> None:
    live = LiveRecording([80])
    samples = np.zeros(16_000, np.float32)
    samples[5_000:5_800] = level  # 50 ms
    live.append(samples)
    assert live.process(ALL) == expected
