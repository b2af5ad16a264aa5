"""Calibration: widths with the same bits, stored measurements, and the speed monitor. No result depends on a clock."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError, Session
from speculative_decoding.draft_length import calibration as module
from speculative_decoding.draft_length import probe as probe_module
from speculative_decoding.draft_length.calibration import (
    CALIBRATION_VARIABLE,
    COMPARED_WIDTHS,
    Calibration,
    CalibrationStore,
    calibration_key,
    choose_exact_widths,
    next_power_of_two,
)
from speculative_decoding.draft_length.exactness import exactness_price
from speculative_decoding.draft_length.passes import PassWidths, SpeedMonitor
from speculative_decoding.draft_length.probe import Bits, Probe
from speculative_decoding.drafters import BatchHeadDrafter
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.version import native_libraries
from tests.parity.test_scoring import Numbers
from tests.support.paths import ROOT
from tests.support.tiny import head_drafter, model_drafter, noisy_copy, tiny_model

KEY = {"target": "a target", "mlx": "1.2.3"}


def metal(width: int) -> int:
    """Groups of equal bits in published 16-bit kernels for M3 and later: gemv, two kinds of gemv_wide, GEMM."""
    return sum(width >= least for least in (2, 6, 16))


class FakeProbe(Probe):
    """A device simulated by formulas. It records all measurements.

    Args:
        kind_of: widths of the same kind have the same bits.
        batches: whether rows of a batch have the bits of single rows.
        slope: the relative cost of a position.
    """

    def __init__(self, kind_of: Callable[[int], int] = metal, *, batches: bool = True, slope: float = 0.02) -> None:
        self.kind_of, self.batches, self.slope = kind_of, batches, slope
        self.timed: list[tuple[int, int]] = []
        self.compared: list[tuple[int, int]] = []
        self.speed = 1.0

    def pass_seconds(self, rows: int, width: int) -> float:
        self.timed.append((rows, width))
        return self.speed * 0.001 * (1.0 + self.slope * rows * width + 0.2 * self.kind_of(width))

    def forget(self) -> None:
        pass

    def draft_seconds(self, rows: int) -> tuple[float, float, float]:
        self.timed.append((rows, 0))
        return 0.0001, 0.00005, 0.0

    def bits(self, width: int) -> list[Bits]:
        self.compared.append((1, width))
        return [[bytes([self.kind_of(width)])]]

    def capacity_matters(self, width: int) -> bool:
        return False

    def single_bits(self, row: int, width: int) -> Bits:
        return [bytes([row, self.kind_of(width)])]

    def batch_bits(self, rows: int, width: int) -> list[Bits]:
        self.compared.append((rows, width))
        return [[bytes([row, self.kind_of(width) if self.batches else 99])] for row in range(2)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of calibration files. The environment names no file."""
    monkeypatch.delenv(CALIBRATION_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module.shared_store.cache_clear()
    yield tmp_path / "cache/speculative-decoding/calibration"
    module.shared_store.cache_clear()


pytestmark = pytest.mark.filterwarnings("ignore:measuring this device")


def calibrated(probe: Probe, draft: str = "") -> Calibration:
    return Calibration(probe, CalibrationStore(KEY), draft)


def test_the_largest_group_of_published_kernels_is_chosen(folder: Path) -> None:
    calibration = calibrated(FakeProbe())
    assert calibration.exact_widths == [6, 8, 10, 12, 15]
    assert {*calibration.exact_costs(1).passes} <= {*range(6, 16)} and calibration.exact_costs(1).passes
    assert min(calibration.costs(1).passes) == 1


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
    costs = [(first.costs(rows), first.exact_costs(rows), first.batches_match(rows)) for rows in (1, 4)]
    second = calibrated(probe, "a head")
    assert [(second.costs(rows), second.exact_costs(rows), second.batches_match(rows)) for rows in (1, 4)] == costs
    assert probe.timed == probe.compared == []
    (path,) = folder.glob("*.json")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    another = FakeProbe()
    assert calibrated(another).costs(1).passes == costs[0][0].passes  # without a draft, the stored passes are used
    assert another.timed == another.compared == []
    assert json.loads(path.read_text())["key"] == KEY


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '{"format": 2}', '{"format": 1}', '{"format": 1, "passes": {"1": {"1": -1}}}',
        '{"format": 1, "passes": {"1": {"1": "NaN"}}, "drafts": {}, "same_bits": {}, "fixed_capacity": false}',
        '{"format": 1, "passes": 3, "drafts": {}, "same_bits": {}, "fixed_capacity": false}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_ignored_and_replaced(folder: Path, content: str) -> None:
    calibrated(FakeProbe()).costs(1)
    (path,) = folder.glob("*.json")
    whole = path.read_text()
    path.write_text(content)
    assert calibrated(FakeProbe()).costs(1).passes and path.read_text() == whole


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_file_is_ignored(folder: Path, share: float) -> None:
    calibrated(FakeProbe()).costs(1)
    (path,) = folder.glob("*.json")
    whole = path.read_text()
    path.write_text(whole[: int(share * len(whole))])
    assert calibrated(FakeProbe()).costs(1).passes and path.read_text() == whole


def test_measurements_stay_in_memory_if_they_cannot_be_stored(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "cache").write_text("a file instead of a folder")
    probe = FakeProbe()
    calibration = calibrated(probe, "a head")
    assert calibration.costs(1) is calibration.costs(1) and probe.timed.count((1, 0)) == 1


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    calibrated(FakeProbe()).costs(1)
    assert not any(folder.iterdir())


def test_forget_measures_again(folder: Path) -> None:
    probe = FakeProbe()
    calibration = calibrated(probe)
    before = calibration.costs(1)
    probe.speed = 2.0
    calibration.forget()
    after = calibration.costs(1)
    assert after.baseline == pytest.approx(2 * before.baseline)
    assert calibrated(FakeProbe()).costs(1) == after  # the stored file was replaced


def test_few_passes_are_timed_and_batches_only_when_needed(folder: Path) -> None:
    probe = FakeProbe(lambda width: 0)
    calibration = calibrated(probe)
    calibration.costs(1)
    assert 2 <= len({*probe.timed}) <= 10 and {rows for rows, _ in probe.timed} == {1}
    for rows in (3, 4):
        calibration.costs(rows)
    assert {rows for rows, _ in probe.timed} == {1, 4} and next_power_of_two(3) == 4
    assert all(rows * width <= 256 for rows, width in probe.timed)


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


def test_a_named_file_replaces_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {
        "format": 1,
        "passes": {"1": {"1": 0.5, "4": 1.0}},
        "drafts": {},
        "same_bits": {},
        "fixed_capacity": False,
    }
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(content))
    monkeypatch.setenv(CALIBRATION_VARIABLE, str(path))
    probe = FakeProbe()
    calibration = calibrated(probe, "a head")
    for rows in (1, 8):
        assert calibration.costs(rows).passes == {1: 0.5, 4: 1.0} == calibration.exact_costs(rows).passes
    calibration.measure_again(1, (1, 4))
    calibration.forget()
    assert calibration.costs(1).baseline == 0.5 and probe.timed == probe.compared == []
    path.write_text("{}")
    with pytest.raises(InputError, match=f"{CALIBRATION_VARIABLE}: .*curve.json is not a calibration file"):
        CalibrationStore(KEY)


def test_the_key_differs_by_target_and_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    key = calibration_key(tiny_model())
    assert key == calibration_key(tiny_model(seed=8))  # weights change neither speed nor bits
    half = tiny_model()
    half.set_dtype(mx.bfloat16)
    others = [calibration_key(half), calibration_key(tiny_model(d_ff=64)), calibration_key(tiny_model(num_layers=3))]
    monkeypatch.setitem(native_libraries, "blas", "another")
    others.append(calibration_key(tiny_model()))
    assert len({key, *others}) == 5


# The price of exactness, and when exact passes are the default.


def test_cheap_exact_passes_are_the_default_and_expensive_ones_are_not(folder: Path) -> None:
    alike, unlike = (
        calibrated(FakeProbe(lambda width: 0)),
        Calibration(FakeProbe(), CalibrationStore(KEY | {"mlx": "2"})),
    )
    for num_draft_tokens in (0, 5, None):
        assert exactness_price(alike, num_draft_tokens, 1, ()).is_worth_it
    baseline = exactness_price(unlike, 0, 1, ())
    assert baseline.is_possible and not baseline.is_worth_it
    assert baseline.share == pytest.approx(1 - unlike.costs(1).baseline / unlike.exact_costs(1).baseline)
    assert exactness_price(unlike, None, 1, ()).share < baseline.share  # drafts fill the wider passes
    assert not exactness_price(unlike, 15, 1, ()).is_possible  # no exact pass has 16 positions
    assert exactness_price(alike, 40, 1, ()).is_worth_it  # a width beyond the compared ones


def test_batches_with_different_bits_are_not_exact(folder: Path) -> None:
    calibration = calibrated(FakeProbe(lambda width: 0, batches=False))
    assert exactness_price(calibration, None, 1, ()).is_possible
    assert not exactness_price(calibration, None, 8, ()).is_possible and not calibration.batches_match(8)


# On this device.


def brute_force(model: EncoderDecoder, source: Sequence[int], widths: Sequence[int]) -> dict[int, list[np.ndarray]]:
    """The logits of 48 positions, decoded in passes of each width."""
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
    unset = f"del os.environ['{CALIBRATION_VARIABLE}']"
    program = (
        f"import tests, os; {unset}; import {__name__} as t, mlx.core as mx; t.compare_with_brute_force(mx.float32)"
    )
    environment = os.environ | {"SPECULATIVE_DECODING_BLAS": "none"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_widths_that_differ_in_the_last_bits_are_detected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real model with the published groups planted."""
    states = EncoderDecoder.states

    def planted(self: EncoderDecoder, tokens: mx.array, cache: DecoderCache) -> mx.array:
        return states(self, tokens, cache) * (1.0 + 2e-7 * metal(tokens.shape[1]))

    monkeypatch.setattr(EncoderDecoder, "states", planted)
    assert calibrated(Probe(tiny_model())).exact_widths == [6, 8, 10, 12, 15]


@pytest.mark.parametrize("what", ["rows", "source", "capacity"])
def test_bits_that_depend_on_the_batch_or_the_capacity_are_detected(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    states = EncoderDecoder.states

    def planted(self: EncoderDecoder, tokens: mx.array, cache: DecoderCache) -> mx.array:
        is_other = {"rows": cache.rows > 1, "source": cache.source_capacity > 32, "capacity": cache.capacity > 32}
        return states(self, tokens, cache) * (1.0 + 1e-6 * is_other[what])

    calibration = calibrated(Probe(tiny_model()))
    assert calibration.batches_match(4) and not calibration.fixed_capacity
    monkeypatch.setattr(EncoderDecoder, "states", planted)
    calibration = Calibration(Probe(tiny_model()), CalibrationStore(KEY | {"planted": what}))
    assert calibration.fixed_capacity == (what == "capacity")
    assert calibration.batches_match(4) == (what == "capacity")


def test_a_real_probe_detects_a_slower_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a clock that advances with each reading."""
    now, step = [0.0], [1e-3]

    def clock() -> float:
        now[0] += step[0]
        return now[0]

    monkeypatch.setattr(probe_module, "time", SimpleNamespace(perf_counter=clock))
    probe = Probe(tiny_model())
    assert probe.pass_seconds(1, 2) == pytest.approx(1e-3)
    step[0] = 2e-3
    assert probe.pass_seconds(1, 2) == pytest.approx(1e-3)  # the fastest so far
    probe.forget()
    assert probe.pass_seconds(1, 2) == pytest.approx(2e-3)


@pytest.mark.parametrize("kind", ["model", "head"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_real_probe_measures_a_draft(kind: str, rows: int) -> None:
    target = tiny_model()
    make: Any = {"head": lambda: head_drafter(target), "model": lambda: model_drafter(target, noisy_copy(target))}[kind]
    step, start, source = Probe(target, make).draft_seconds(rows)
    assert min(step, start, source) >= 0 and step + start > 0
    assert isinstance(make(), BatchHeadDrafter) == (kind == "head")


def test_a_session_calibrates_once_and_reports_the_price(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[FakeProbe] = []

    def probe(model: EncoderDecoder, make: Any = None) -> FakeProbe:
        probes.append(FakeProbe())
        return probes[-1]

    monkeypatch.setattr("speculative_decoding.draft_length.planner.Probe", probe)
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))
    for _ in range(2):
        session.generate("5 9 3", max_tokens=4)
    assert len(probes) == 1 and probes[0].timed
    note = session.planner.exactness_note(session.options_with({"drafter": "none"}))
    assert note and "strict prevents that and costs" in note and "%" in note
    assert session.planner.exactness_note(session.options_with({"strict": True})) is None
    assert session.planner.exactness_note(session.options_with({"strict": False})) is None
    assert (
        session.planner.exactness_note(session.options_with({"temperature": 1.0})) is None
    )  # samples may differ in any case
    with pytest.raises(
        InputError, match=r"num_draft_tokens: too many for exact passes on this device \(got 20, expected at most 14\)"
    ):
        session.generate("5 9 3", num_draft_tokens=20, strict=True)
    for schedule in ("auto", 14):  # drafts are cut to the exact passes
        session.generate("5 9 3", num_draft_tokens=schedule, strict=True, max_tokens=30)
    timed = len(probes[0].timed)
    session.calibrate(again=True)
    assert len(probes[0].timed) > timed


def test_a_calibrated_session_frees_its_models(folder: Path) -> None:
    session = Session(tiny_model(), Numbers(), noisy_copy(tiny_model()))
    session.calibrate()
    models = [weakref.ref(session.model), weakref.ref(session.draft_model)]
    del session
    gc.collect()
    assert [model() for model in models] == [None, None]


def test_calibrating_again_measures_passes_with_and_without_a_draft(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes: list[FakeProbe] = []

    def probe(model: EncoderDecoder, make: Any = None) -> FakeProbe:
        probes.append(FakeProbe())
        return probes[-1]

    monkeypatch.setattr("speculative_decoding.draft_length.planner.Probe", probe)
    target = tiny_model()
    session = Session(target, Numbers(), noisy_copy(target))
    both = [session.options_with({"drafter": drafter}) for drafter in ("auto", "ngram")]
    before = [session.planner.calibration(options).costs(1).baseline for options in both]
    assert len(probes) == 2
    for each in probes:
        each.speed = 2.0
    session.calibrate(again=True)
    after = [session.planner.calibration(options).costs(1).baseline for options in both]
    assert after == pytest.approx([2 * seconds for seconds in before])


# The speed monitor.


def rounds_until(monitor: SpeedMonitor, ratio: float, max_rounds: int = 500) -> int | None:
    return next((i for i in range(max_rounds) if monitor.observe(1.0, ratio)), None)


@pytest.mark.parametrize("ratio", [0.85, 1.0, 1.2])
def test_the_speed_monitor_lets_small_differences_pass(ratio: float) -> None:
    assert rounds_until(SpeedMonitor(), ratio) is None


@pytest.mark.parametrize("ratio", [0.5, 0.75, 1.3, 2.0])
def test_the_speed_monitor_reports_each_change_once(ratio: float) -> None:
    monitor = SpeedMonitor()
    assert rounds_until(monitor, ratio) == SpeedMonitor.ROUNDS - 1
    assert rounds_until(monitor, ratio) is None  # unchanged after measuring again: host time
    assert rounds_until(monitor, 1.5 * ratio) is not None


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
