"""Calibration: measured and stored costs. No result depends on a clock."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.draft_length import exact_widths
from speculative_decoding.draft_length.calibration import (
    REFINING_SECONDS,
    REFINING_SHARE,
    START_SECONDS,
    Calibration,
)
from speculative_decoding.draft_length.costs import MAX_WIDTH, MAX_WIDTHS, WIDER_WIDTHS, next_power_of_two
from speculative_decoding.draft_length.kernel_bits import Bits
from speculative_decoding.draft_length.passes import RoundCosts
from speculative_decoding.draft_length.store import CALIBRATION_VARIABLE
from tests.support.fake_probe import KEY, Clock, FakeProbe, calibrated, exact_widths_of, metal

pytestmark = pytest.mark.filterwarnings("ignore:measuring this device")


def test_measurements_are_stored_and_loaded(folder: Path) -> None:
    def measured(calibration: Calibration, rows: int) -> tuple[RoundCosts, RoundCosts, bool]:
        matches = exact_widths_of(calibration).batches_match(rows)
        return calibration.costs(rows), calibration.costs(rows, exact=True), matches

    first, probe = calibrated(FakeProbe(), "a head"), FakeProbe()
    for _ in range(2):
        costs = [measured(first, rows) for rows in (1, 4)]
        first = calibrated(FakeProbe(), "a head")  # exact passes have timed some of the same widths
    second = calibrated(probe, "a head")
    assert [measured(second, rows) for rows in (1, 4)] == costs
    assert probe.timed == probe.compared == []
    (path,) = folder.glob("*.json")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    another = FakeProbe()
    assert calibrated(another).costs(1).passes == costs[0][0].passes  # without a draft, the stored passes are used
    assert another.timed == another.compared == []
    assert json.loads(path.read_text())["key"] == KEY


class TimedProbe(FakeProbe):
    """Each timing takes some seconds."""

    def __init__(self, clock: Clock, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self.clock = clock
        self.seconds = seconds

    def pass_seconds(self, rows: int, width: int) -> list[float]:
        self.clock.now += self.seconds
        return super().pass_seconds(rows, width)

    def draft_seconds(self, rows: int) -> tuple[float, float, float]:
        self.clock.now += self.seconds
        return super().draft_seconds(rows)


@pytest.mark.parametrize("seconds", [0.001, 0.1, 3.0])
def test_the_first_token_waits_for_a_short_measurement_only(folder: Path, clock: Clock, seconds: float) -> None:
    probe = TimedProbe(clock, seconds)
    costs = calibrated(probe, "a head").costs(1)
    assert clock.now <= max(START_SECONDS, 2 * seconds) + seconds
    assert {(1, 1), (1, 0)} <= {*probe.timed}  # a pass and the draft, even if each takes long
    assert max(costs.passes) == MAX_WIDTH and [*costs.passes.values()] == sorted(costs.passes.values())
    assert costs.step > 0


def test_later_runs_refine_costs_for_a_small_share_of_the_time(folder: Path, clock: Clock) -> None:
    """They use the stored costs, and do not announce that they measure."""
    first = calibrated(TimedProbe(clock, 0.06), "a head").costs(1)
    runs = 0
    timed = [0]
    while timed:
        probe = TimedProbe(clock, 0.03)
        calibration = calibrated(probe, "a head")
        started = clock.now
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            costs = calibration.costs(1)
            assert (costs == first or runs) and probe.timed == []
            for _ in range(1000):
                calibration.refine(1)
                calibration.observe(1, 1, 0, 0.003)
        assert clock.now - started <= REFINING_SECONDS + REFINING_SHARE * 3.0 + 0.03
        timed = probe.timed
        runs += 1
    fully = calibrated(FakeProbe(), "a head", KEY | {"mlx": "2"})
    complete = fully.measure_fully(1)
    assert fully.measure_fully(1) == complete  # all costs are known well
    assert calibrated(FakeProbe(), "a head").costs(1).passes == pytest.approx(complete.passes, rel=0.05)
    assert 2 < runs < 20


def test_rounds_correct_costs_until_the_next_process(folder: Path, clock: Clock) -> None:
    """Their ratios follow those of the rounds. Widths stay the same, because MLX would trace others."""
    calibration = calibrated(FakeProbe(lambda width: 0, slope=0.05), "a head")
    before = calibration.measure_fully(1)
    widths = [*before.passes]
    for _ in range(200):
        for width in (widths[0], widths[-1]):
            cost = before.round_cost(width - 1, width - 1 if width > 1 else 0)
            calibration.observe(1, width, width - 1, 3.0 * cost * (2.0 if width > 1 else 1.0))
    after = calibration.costs(1)
    assert [*after.passes] == widths and after.step == before.step
    assert after.passes[widths[-1]] / after.baseline > 1.5 * before.passes[widths[-1]] / before.baseline
    assert calibrated(FakeProbe(), "a head").costs(1) == before
    calibration.forget()
    assert calibration.measure_fully(1) == before


def test_measuring_is_announced_once_for_all_models(folder: Path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for target in ("a target", "another"):
            calibration = calibrated(FakeProbe(), key={"target": target})
            calibration.costs(1)
            assert exact_widths_of(calibration).widths
    assert len(found) == 1 and f"stored in {folder}" in str(found[0].message)


def test_a_long_comparison_of_widths_shows_progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are quantized or in 16 bits need it, and it may take minutes for a large model."""
    monkeypatch.setattr(exact_widths, "NOTE_SECONDS", -1)
    with pytest.warns(UserWarning, match="comparing the bits of pass widths, once for this model: 15 of 16"):
        assert exact_widths_of(calibrated(FakeProbe())).widths


def test_few_passes_are_timed_and_batches_only_when_needed(folder: Path) -> None:
    probe = FakeProbe(lambda width: 0)
    calibration = calibrated(probe)
    calibration.costs(1)
    assert 2 <= len({*probe.timed}) <= MAX_WIDTHS and {rows for rows, _ in probe.timed} == {1}
    for rows in (3, 4):
        calibration.costs(rows)
    assert {rows for rows, _ in probe.timed} == {1, 4} and next_power_of_two(3) == 4
    assert all(rows * width <= 256 for rows, width in probe.timed)


def test_times_and_bits_are_measured_only_if_they_are_needed(folder: Path) -> None:
    probe = FakeProbe()
    calibration = calibrated(probe, "a head")
    for rows in (1, 8):
        calibration.costs(rows)
    assert probe.compared == []  # passes that need not be exact
    timed = len(probe.timed)
    exact_widths = exact_widths_of(calibration)
    assert exact_widths.widths and exact_widths.batches_match(8) and exact_widths.widths_for(8, 7)
    assert not exact_widths.is_exact_by_default(None, 8)
    assert len(probe.timed) == timed


def widths_timed(probe: FakeProbe) -> set[int]:
    return {width for _, width in probe.timed}


def refined(calibration: Calibration, rows: int = 1, rounds: int = 200, **options: bool) -> RoundCosts:
    """Run rounds that take a second each."""
    for _ in range(rounds):
        calibration.costs(rows, **options)
        calibration.observe(rows, 0, 0, 1.0, **options)  # the width of a pass that is not corrected
        calibration.refine(rows, **options)
    return calibration.costs(rows, **options)


def test_wider_passes_are_timed_only_on_request_and_between_rounds(folder: Path, clock: Clock) -> None:
    """The first token waits for the usual widths only, and a later process reads the stored cost."""
    probe = TimedProbe(clock, 0.001)
    calibration = calibrated(probe, "a head")
    costs = refined(calibration)
    assert max(widths_timed(probe)) == max(costs.passes) == MAX_WIDTH and [*costs.untimed] == [*WIDER_WIDTHS]

    calibration.widen(1, 24)
    assert calibration.costs(1) == costs and 24 not in widths_timed(probe)
    refined(calibration, rounds=1)
    wider = calibration.costs(1)
    assert probe.timed[-1] == (1, 24)
    assert {*wider.passes} == {*costs.passes, 24} and [*wider.untimed] == [32, 48, 64]
    assert [*wider.passes.values()] == sorted(wider.passes.values())

    another = TimedProbe(clock, 0.001)
    assert calibrated(another, "a head").costs(1) == wider and another.timed == []
    calibrated(another, "another head").costs(1)
    assert max(widths_timed(another)) <= MAX_WIDTH  # its first token waits for its draft only


def test_a_request_for_a_wider_pass_waits_for_the_usual_ones(folder: Path, clock: Clock) -> None:
    """Whether a wider pass may pay is known only then. It does not wait until they are known well."""
    first = TimedProbe(clock, 0.1)
    calibrated(first).costs(1)
    assert first.timed == [(1, 1), (1, MAX_WIDTH)]
    probe = TimedProbe(clock, 0.001)
    calibration = calibrated(probe)
    calibration.widen(1, 24)
    refined(calibration)
    before = [width for _, width in probe.timed[: probe.timed.index((1, 24))]]
    assert 2 in before and len(before) == len({*before}) and not {*before} & {1, MAX_WIDTH}


def test_wider_passes_stay_within_the_share_of_refinement(folder: Path, clock: Clock) -> None:
    calibrated(FakeProbe()).measure_fully(1)
    probe = TimedProbe(clock, 0.06)
    calibration = calibrated(probe)
    calibration.costs(1)
    for width in WIDER_WIDTHS:
        calibration.widen(1, width)
        for _ in range(100):
            calibration.refine(1)
    assert probe.timed == [(1, 24), (1, 32)]
    calibration.observe(1, 1, 0, 60.0)
    calibration.refine(1)
    assert probe.timed == [(1, 24), (1, 32), (1, 64)]
    assert not calibrated(FakeProbe(), key={"target": "another"}).costs(1).passes.keys() & {*WIDER_WIDTHS}


@pytest.mark.parametrize(
    ("kind_of", "expected"),
    [(metal, []), (lambda width: width > 1, [24, 32]), (lambda width: 0, [24, 32]), (lambda width: width > 24, [24])],
)
def test_exact_passes_are_no_wider_than_the_compared_widths(
    folder: Path, clock: Clock, kind_of: Callable[[int], int], expected: list[int]
) -> None:
    """Comparing more widths could change which ones are exact, and with them the tokens."""
    probe = FakeProbe(kind_of, slope=0.001)
    calibration = calibrated(probe)
    assert [*calibration.costs(1).untimed] == [*WIDER_WIDTHS]
    assert [*calibration.costs(1, exact=True).untimed] == expected
    compared = [*probe.compared]
    for width in WIDER_WIDTHS:
        calibration.widen(1, width, exact=True)
        refined(calibration, exact=True)
    assert {*calibration.costs(1, exact=True).passes} & {*WIDER_WIDTHS} == {*expected}
    assert probe.compared == compared


class WideBatchesDiffer(FakeProbe):
    """Batches have the bits of single rows only in passes of the usual widths."""

    def batch_bits(self, rows: int, width: int) -> list[Bits]:
        self.batches = width <= MAX_WIDTH
        return super().batch_bits(rows, width)


@pytest.mark.parametrize("create", [FakeProbe, WideBatchesDiffer])
def test_exact_passes_of_batches_are_compared_before_they_are_used(
    folder: Path, clock: Clock, create: type[FakeProbe]
) -> None:
    """It does not matter that other rounds, which need not be exact, have timed them."""
    probe = create(lambda width: 0, slope=0.001)
    calibration = calibrated(probe)
    assert [*calibration.costs(4).untimed] == [*WIDER_WIDTHS]
    assert [*calibration.costs(8).untimed] == [24, 32]  # at most 256 positions
    assert [*calibration.costs(16).untimed] == []
    assert [*calibration.costs(4, exact=True).untimed] == [24, 32]
    calibration.widen(4, 24)
    assert 24 in refined(calibration, 4).passes and (4, 24) not in probe.compared
    assert 24 not in calibration.costs(4, exact=True).passes

    for width in (24, 32):
        calibration.widen(4, width, exact=True)
        refined(calibration, 4, exact=True)
        assert (4, width) in probe.compared
    costs = calibration.costs(4, exact=True)
    assert {*costs.passes} & {*WIDER_WIDTHS} == ({24, 32} if create is FakeProbe else set()) and not costs.untimed
    assert (create is FakeProbe) == ((4, 32) in probe.timed)


def test_a_named_file_is_not_extended(folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = FakeProbe()
    calibrated(probe).costs(1)
    (path,) = folder.glob("*.json")
    monkeypatch.setenv(CALIBRATION_VARIABLE, str(path))
    calibration = calibrated(probe)
    timed = len(probe.timed)
    assert not calibration.costs(1).untimed
    calibration.widen(1, 24)
    assert max(refined(calibration).passes) == MAX_WIDTH and len(probe.timed) == timed
