"""Calibration: widths with the same bits, and stored measurements. No result depends on a clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from speculative_decoding.draft_length import calibration as module
from speculative_decoding.draft_length.calibration import (
    COMPARED_WIDTHS,
    ROUNDS_BEFORE_REFINING,
    START_SECONDS,
    Calibration,
    calibration_key,
    choose_exact_widths,
    gives_any_width_the_same_bits,
    next_power_of_two,
)
from speculative_decoding.draft_length.costs import MAX_MEASURED_WIDTHS, MAX_WIDTH
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.draft_length.store import CALIBRATION_VARIABLE, SETTLED, CalibrationStore
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.version import native_libraries
from tests.parity.test_t5 import GOLDENS, load_golden
from tests.support.fake_probe import KEY, FakeProbe, calibrated, metal, metal_with_fused_attention
from tests.support.paths import ROOT
from tests.support.tiny import tiny_model

CACHES = os.environ.get("XDG_CACHE_HOME", "")  # compiled kernels are here; the fixture `folder` sets another folder
pytestmark = pytest.mark.filterwarnings("ignore:measuring this device")


def test_the_largest_group_of_published_kernels_is_chosen(folder: Path) -> None:
    calibration = calibrated(FakeProbe())
    assert calibration.exact_widths == [6, 8, 9, 10, 12, 14, 15]
    assert {*calibration.costs(1, exact=True).passes} <= {*range(6, 16)} and calibration.costs(1, exact=True).passes
    assert min(calibration.costs(1).passes) == 1


def test_exact_passes_use_one_kernel_for_attention(folder: Path) -> None:
    """Metal's fused attention has a kernel for up to 8 positions and another for more."""
    assert calibrated(FakeProbe(metal_with_fused_attention)).exact_widths == [9, 10, 12, 14, 15]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([[1, 2, 3, 4], [5, 6], [16, 24, 32]], [1, 2, 3, 4]),
        ([[1], [2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 24, 32]], [2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 24, 32]),
        ([[1], [2, 3], [4, 5], [24, 32, 16]], [2, 3]),  # the narrowest of equally large groups
        ([[width] for width in COMPARED_WIDTHS], [1]),
    ],
)
def test_the_choice_does_not_depend_on_the_order_of_groups(groups: list[list[int]], expected: list[int]) -> None:
    assert choose_exact_widths(groups) == expected == choose_exact_widths(groups[::-1])


@pytest.mark.parametrize("speed", [1.0, 50.0])
@pytest.mark.parametrize("draft", ["", "a head"])
def test_neither_timings_nor_a_draft_change_the_exact_widths(folder: Path, speed: float, draft: str) -> None:
    probe = FakeProbe(slope=0.02 * speed)
    assert calibrated(probe, draft).exact_widths == calibrated(FakeProbe()).exact_widths


def test_measurements_are_stored_and_loaded(folder: Path) -> None:
    first, probe = calibrated(FakeProbe(), "a head"), FakeProbe()
    costs = [(first.costs(rows), first.costs(rows, exact=True), first.batches_match(rows)) for rows in (1, 4)]
    second = calibrated(probe, "a head")
    assert [
        (second.costs(rows), second.costs(rows, exact=True), second.batches_match(rows)) for rows in (1, 4)
    ] == costs
    assert probe.timed == probe.compared == []
    (path,) = folder.glob("*.json")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    another = FakeProbe()
    assert calibrated(another).costs(1).passes == costs[0][0].passes  # without a draft, the stored passes are used
    assert another.timed == another.compared == []
    assert json.loads(path.read_text())["key"] == KEY


def test_forget_discards_measurements(folder: Path) -> None:
    probe = FakeProbe()
    calibration = calibrated(probe)
    before = calibration.costs(1)
    probe.speed = 2.0
    calibration.forget()
    after = calibration.costs(1)
    assert after.baseline == pytest.approx(2 * before.baseline)
    assert calibrated(FakeProbe()).costs(1) == after  # the stored file was replaced


class Clock:
    """A clock that advances by some seconds with each timing of `TimedProbe`."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class TimedProbe(FakeProbe):
    """Each timing takes some seconds."""

    def __init__(self, clock: Clock, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self.clock = clock
        self.seconds = seconds

    def pass_seconds(self, rows: int, width: int) -> float:
        self.clock.now += self.seconds
        return super().pass_seconds(rows, width)

    def draft_seconds(self, rows: int) -> tuple[float, float, float]:
        self.clock.now += self.seconds
        return super().draft_seconds(rows)


@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.1, 3.0])
def test_the_first_token_waits_for_a_short_measurement_only(folder: Path, clock: Clock, seconds: float) -> None:
    probe = TimedProbe(clock, seconds)
    costs = calibrated(probe, "a head").costs(1)
    assert clock.now <= max(START_SECONDS, 2 * seconds) + seconds
    assert {(1, 1), (1, 0)} <= {*probe.timed}  # a pass and the draft, even if each takes long
    assert max(costs.passes) == MAX_WIDTH and [*costs.passes.values()] == sorted(costs.passes.values())
    assert costs.step > 0


def test_rough_costs_are_stored_marked_and_used(folder: Path, clock: Clock) -> None:
    first = calibrated(TimedProbe(clock, 0.06), "a head").costs(1)
    (path,) = folder.glob("*.json")
    assert json.loads(path.read_text())["rough"] == {"pass 1 1": 1, "draft a head 1": 1, "pass 1 17": 1}
    again = TimedProbe(clock, 0.06)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a second run says nothing about measuring
        assert calibrated(again, "a head").costs(1) == first
    assert again.timed == []


def test_later_runs_refine_rough_costs_for_at_most_a_fifth_of_a_second(folder: Path, clock: Clock) -> None:
    calibrated(TimedProbe(clock, 0.06), "a head").costs(1)
    timed = 0
    run = 0
    while run < 60:
        run += 1
        probe = TimedProbe(clock, 0.03)
        calibration = calibrated(probe, "a head")
        calibration.costs(1)
        assert probe.timed == []
        started = clock.now
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(100):
                calibration.refine(1)
        assert clock.now - started < 0.2 + 0.03
        timed += len(probe.timed)
        if not probe.timed:
            break
    complete = Calibration(FakeProbe(), CalibrationStore(KEY | {"mlx": "2"}), "a head").settle(1)
    assert calibrated(FakeProbe(), "a head").costs(1) == complete
    assert 1 < run < 20 and timed < 60


def test_costs_that_are_never_steady_are_refined_a_few_times_only(folder: Path) -> None:
    class NoisyProbe(FakeProbe):
        def pass_seconds(self, rows: int, width: int) -> float:
            self.speed *= 1.5 if len(self.timed) % 2 else 0.5
            return super().pass_seconds(rows, width)

    probe = NoisyProbe()
    calibration = calibrated(probe)
    calibration.settle(1)
    timed = len(probe.timed)
    assert 9 <= timed <= SETTLED * (MAX_MEASURED_WIDTHS + 1)
    calibration.settle(1)
    assert len(probe.timed) == timed


def test_the_run_that_measures_first_refines_only_if_it_is_long(folder: Path, clock: Clock) -> None:
    probe = TimedProbe(clock, 0.06)
    calibration = calibrated(probe)
    calibration.costs(1)
    timed = len(probe.timed)
    for _ in range(ROUNDS_BEFORE_REFINING):
        calibration.refine(1)
    assert len(probe.timed) == timed
    calibration.refine(1)
    assert len(probe.timed) == timed + 1


def test_measuring_is_announced_once_for_all_models(folder: Path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for target in ("a target", "another"):
            calibration = Calibration(FakeProbe(), CalibrationStore({"target": target}))
            calibration.costs(1)
            assert calibration.exact_widths
    assert len(found) == 1 and f"stored in {folder}" in str(found[0].message)


def test_few_passes_are_timed_and_batches_only_when_needed(folder: Path) -> None:
    probe = FakeProbe(lambda width: 0)
    calibration = calibrated(probe)
    calibration.costs(1)
    assert 2 <= len({*probe.timed}) <= 10 and {rows for rows, _ in probe.timed} == {1}
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
    assert calibration.exact_widths and calibration.batches_match(8) and calibration.exact_widths_for(8, 7)
    assert not calibration.is_exact_by_default(None, 8)
    assert len(probe.timed) == timed


def test_nothing_is_compared_where_the_kernel_gives_equal_bits(folder: Path) -> None:
    probe = FakeProbe(batches=False)
    calibration = Calibration(probe, CalibrationStore(KEY), any_width=True)
    assert calibration.is_exact_by_default(40, 64) and calibration.batches_match(64)
    assert not calibration.fixed_capacity and calibration.exact_width(1000) == 1000
    assert calibration.costs(1, exact=True).passes == calibration.costs(1).passes
    assert probe.compared == []


@pytest.mark.parametrize(
    ("kind_of", "expected"),
    [
        (lambda width: 0, {0: True, 5: True, 40: True, None: True}),
        (metal, {0: False, 4: False, 5: True, 14: True, 15: False, None: False}),
        (lambda width: width > 1, {0: False, 1: True, 5: True, None: True}),  # 16 bits on M1: only width 1 differs
        (lambda width: width > 10, {0: True, 9: True, 10: False, None: True}),
        (lambda width: width > 6, {0: False, 5: False, 7: True, None: False}),  # 4 bits on M1
    ],
)
def test_the_default_is_exact_where_usual_passes_need_no_padding(
    folder: Path, kind_of: Callable[[int], int], expected: Mapping[int | None, bool]
) -> None:
    assert {length: calibrated(FakeProbe(kind_of)).is_exact_by_default(length, 1) for length in expected} == expected


def test_no_timing_changes_what_is_exact_by_default(folder: Path) -> None:
    lengths = (0, 3, 6, 14, None)
    first = [calibrated(FakeProbe(), "a head").is_exact_by_default(length, 4) for length in lengths]
    calibrated(FakeProbe(), "a head").settle(4)
    for speed, slope in ((1.0, 0.0), (50.0, 0.0), (1.0, 5.0)):
        probe = FakeProbe(slope=slope)
        probe.speed = speed
        calibration = calibrated(probe, "a head")
        calibration.forget()
        calibration.settle(4)
        assert [calibration.is_exact_by_default(length, 4) for length in lengths] == first


def test_batches_with_other_bits_are_not_exact(folder: Path) -> None:
    calibration = calibrated(FakeProbe(lambda width: 0, batches=False))
    assert calibration.is_exact_by_default(None, 1)
    assert not calibration.is_exact_by_default(None, 8) and not calibration.batches_match(8)


def test_a_slower_device_scales_all_costs_and_stores_nothing(folder: Path) -> None:
    probe = FakeProbe()
    calibration = calibrated(probe, "a head")
    before = calibration.costs(1)
    probe.speed = 2.0
    widest = max(before.passes)
    calibration.measure_again(1, (1, widest))
    after = calibration.costs(1)
    assert {width: seconds / before.passes[width] for width, seconds in after.passes.items()} == pytest.approx(
        dict.fromkeys(before.passes, 2.0)
    )
    assert after.step == pytest.approx(2 * before.step)
    assert calibrated(FakeProbe(), "a head").costs(1) == before


def test_measuring_again_replaces_a_missing_width_by_the_next_wider_one(folder: Path) -> None:
    probe = FakeProbe(lambda width: 0, slope=0.0)  # a flat curve keeps few widths
    calibration = calibrated(probe)
    probe.speed = 3.0
    assert 3 not in calibration.costs(1).passes
    calibration.measure_again(1, (1, 3))
    assert calibration.costs(1).baseline == pytest.approx(0.003)


def test_the_key_differs_by_target_and_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    key = calibration_key(tiny_model())
    assert key == calibration_key(tiny_model(seed=8))  # weights change neither speed nor bits
    half = tiny_model()
    half.set_dtype(mx.bfloat16)
    others = [calibration_key(half), calibration_key(tiny_model(d_ff=64)), calibration_key(tiny_model(num_layers=3))]
    monkeypatch.setitem(native_libraries, "blas", "another")
    others.append(calibration_key(tiny_model()))
    assert len({key, *others}) == 5


def test_equal_bits_are_known_for_float32_with_tiles_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(native_libraries, "equal_rows", "float32")
    assert gives_any_width_the_same_bits(tiny_model())
    half, quantized = tiny_model(), tiny_model(d_model=64, d_kv=32, num_heads=2, d_ff=64)
    half.set_dtype(mx.bfloat16)
    nn.quantize(quantized, 64, 8, class_predicate=lambda path, layer: isinstance(layer, nn.Linear))
    assert not gives_any_width_the_same_bits(half) and not gives_any_width_the_same_bits(quantized)
    monkeypatch.setattr(module, "on_gpu", lambda: True)
    assert not gives_any_width_the_same_bits(tiny_model())
    monkeypatch.undo()
    monkeypatch.setattr(module, "native_libraries", {"blas": "another"})
    assert not gives_any_width_the_same_bits(tiny_model())


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_known_equal_bits_equal_those_of_a_comparison(folder: Path, golden: Path) -> None:
    model, _ = load_golden(golden)
    if not gives_any_width_the_same_bits(model):
        pytest.skip("nothing is known about this machine's kernels")
    calibration = Calibration(Probe(model), CalibrationStore({"golden": golden.name}))
    assert calibration.exact_widths == [*COMPARED_WIDTHS]
    assert calibration.batches_match(4) and not calibration.fixed_capacity


def brute_force(model: EncoderDecoder, source: Sequence[int], widths: Sequence[int]) -> dict[int, list[np.ndarray]]:
    """Return the logits of 48 positions, decoded in passes of each width."""
    tokens, found = [(7 * i + 3) % 20 + 2 for i in range(48)], {}
    for width in widths:
        cache = model.make_cache(model.encode(mx.array([list(source)])))
        parts = [model.decode(mx.array([tokens[i : i + width]]), cache) for i in range(0, 48, width)]
        found[width] = list(np.array(mx.concatenate(parts, axis=1)[0].astype(mx.float32)))
    return found


def compare_with_brute_force(dtype: mx.Dtype) -> None:
    model = tiny_model(seed=3, position_scale=1.0, d_model=96, d_kv=24, d_ff=320, num_heads=4)
    model.set_dtype(dtype)
    calibration = Calibration(Probe(model), CalibrationStore({"dtype": str(dtype)}))
    logits = brute_force(model, [5, 9, 3, 7, 1], COMPARED_WIDTHS)
    reference = logits[calibration.exact_widths[0]]
    same = [width for width in COMPARED_WIDTHS if all(map(np.array_equal, logits[width], reference))]
    assert calibration.exact_widths == same, dtype


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_exact_widths_equal_those_of_a_brute_force_comparison(folder: Path, dtype: mx.Dtype) -> None:
    compare_with_brute_force(dtype)


def test_exact_widths_with_the_blas_of_mlx(folder: Path) -> None:
    calibrations = f"del os.environ['{CALIBRATION_VARIABLE}']; os.environ['XDG_CACHE_HOME'] = {str(folder)!r}"
    program = (
        f"import tests, os; {calibrations}; import {__name__} as t, mlx.core as mx;"
        "t.compare_with_brute_force(mx.float32)"
    )
    environment = os.environ | {"SPECULATIVE_DECODING_BLAS": "none", "XDG_CACHE_HOME": CACHES}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def equal_bits(folder: Path) -> None:
    """Skip a test on a Mac whose bits already depend on the shape; planted differences would add to them."""
    found = calibrated(Probe(tiny_model()))
    is_equal = list(found.exact_widths) == list(COMPARED_WIDTHS) and found.batches_match(4) and not found.fixed_capacity
    if sys.platform == "darwin" and not is_equal:
        pytest.skip("bits depend on the shape here")
    assert is_equal


def test_widths_that_differ_in_the_last_bits_are_detected(equal_bits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published groups are planted in a real model."""
    states = EncoderDecoder.states

    def planted(self: EncoderDecoder, tokens: mx.array, cache: DecoderCache) -> mx.array:
        return states(self, tokens, cache) * (1.0 + 2e-7 * metal(tokens.shape[1]))

    monkeypatch.setattr(EncoderDecoder, "states", planted)
    calibration = Calibration(Probe(tiny_model()), CalibrationStore(KEY | {"planted": "widths"}))
    assert calibration.exact_widths == [6, 8, 9, 10, 12, 14, 15]


@pytest.mark.parametrize("what", ["rows", "source", "capacity"])
def test_bits_that_depend_on_the_batch_or_the_capacity_are_detected(
    equal_bits: None, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    states = EncoderDecoder.states

    def planted(self: EncoderDecoder, tokens: mx.array, cache: DecoderCache) -> mx.array:
        is_other = {"rows": cache.rows > 1, "source": cache.source_capacity > 32, "capacity": cache.capacity > 32}
        return states(self, tokens, cache) * (1.0 + 1e-6 * is_other[what])

    monkeypatch.setattr(EncoderDecoder, "states", planted)
    calibration = Calibration(Probe(tiny_model()), CalibrationStore(KEY | {"planted": what}))
    assert calibration.fixed_capacity == (what == "capacity")
    assert calibration.batches_match(4) == (what == "capacity")
