"""Calibration: widths with the same bits, and stored measurements. No result depends on a clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError
from speculative_decoding.draft_length.calibration import (
    CALIBRATION_VARIABLE,
    COMPARED_WIDTHS,
    Calibration,
    CalibrationStore,
    calibration_key,
    choose_exact_widths,
    next_power_of_two,
)
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.models.cache import DecoderCache
from speculative_decoding.version import native_libraries
from tests.support.fake_probe import KEY, FakeProbe, calibrated, metal, metal_with_fused_attention
from tests.support.paths import ROOT
from tests.support.tiny import tiny_model

CACHES = os.environ.get("XDG_CACHE_HOME", "")  # compiled kernels are here; the fixture `folder` sets another folder
pytestmark = pytest.mark.filterwarnings("ignore:measuring this device", "ignore:timings vary")


def test_the_largest_group_of_published_kernels_is_chosen(folder: Path) -> None:
    calibration = calibrated(FakeProbe())
    assert calibration.exact_widths == [6, 8, 9, 10, 12, 14, 15]
    assert {*calibration.exact_costs(1).passes} <= {*range(6, 16)} and calibration.exact_costs(1).passes
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


def test_forget_discards_measurements(folder: Path) -> None:
    probe = FakeProbe()
    calibration = calibrated(probe)
    before = calibration.costs(1)
    probe.speed = 2.0
    calibration.forget()
    after = calibration.costs(1)
    assert after.baseline == pytest.approx(2 * before.baseline)
    assert calibrated(FakeProbe()).costs(1) == after  # the stored file was replaced


def test_timings_that_do_not_settle_are_not_stored(folder: Path) -> None:
    class NoisyProbe(FakeProbe):
        def pass_seconds(self, rows: int, width: int) -> float:
            self._fastest[rows, width] = [1.0, 2.0]
            return super().pass_seconds(rows, width)

    for _ in range(2):
        with pytest.warns(match="timings vary"):
            assert calibrated(NoisyProbe(), "a head").costs(1).passes
        assert not any(folder.iterdir())
    costs = calibrated(FakeProbe(), "a head").costs(1)
    assert calibrated(NoisyProbe(), "a head").costs(1) == costs


def test_measuring_is_announced_once_for_all_models(folder: Path) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for target in ("a target", "another"):
            Calibration(FakeProbe(), CalibrationStore({"target": target})).costs(1)
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
