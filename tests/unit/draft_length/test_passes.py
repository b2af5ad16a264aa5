"""The speed monitor, and the widths of passes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from speculative_decoding.draft_length.calibration import Calibration
from speculative_decoding.draft_length.passes import PassWidths, SpeedMonitor
from speculative_decoding.draft_length.store import CalibrationStore
from tests.support.fake_probe import KEY, FakeProbe


def rounds_until(monitor: SpeedMonitor, ratio: float, max_rounds: int = 500) -> int | None:
    return next((i for i in range(max_rounds) if monitor.observe(1.0, ratio)), None)


@pytest.mark.parametrize("ratio", [0.85, 1.0, 1.2])
def test_the_speed_monitor_ignores_small_differences(ratio: float) -> None:
    assert rounds_until(SpeedMonitor(), ratio) is None


@pytest.mark.parametrize("ratio", [0.5, 0.75, 1.3, 2.0])
def test_the_speed_monitor_reports_each_change_once(ratio: float) -> None:
    monitor = SpeedMonitor()
    assert rounds_until(monitor, ratio) == SpeedMonitor.ROUNDS - 1
    assert rounds_until(monitor, ratio) is None  # unchanged after measuring again: host time
    assert rounds_until(monitor, 1.5 * ratio) is not None


def test_the_speed_monitor_ignores_rounds_that_compile() -> None:
    monitor = SpeedMonitor()
    times = [1000.0] * (SpeedMonitor.ROUNDS // 2 - 1) + [1.0] * SpeedMonitor.ROUNDS
    assert not any(monitor.observe(1.0, seconds) for seconds in times)


def test_slower_rounds_are_measured_again() -> None:
    asked: list[tuple[int, Sequence[int]]] = []
    fixed = Calibration(FakeProbe(), CalibrationStore(KEY)).costs(1)
    widths = PassWidths(lambda rows: fixed, measure_again=lambda rows, which: asked.append((rows, which)))
    for _ in range(SpeedMonitor.ROUNDS):
        widths.observe(1, 0, 0, 1.0)  # without a draft
        widths.observe(3, 3, 3, 1.0)  # costs are those of 4 rows
        widths.observe(1, 3, 3, fixed.round_seconds(3, 3))
    assert asked == []
    for _ in range(SpeedMonitor.ROUNDS):
        widths.observe(1, 3, 3, 2 * fixed.round_seconds(3, 3))
    assert asked == [(1, (1, fixed.width(4)))]
