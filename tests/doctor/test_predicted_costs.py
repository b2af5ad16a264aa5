"""The predicted cost of passes on Apple GPUs."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from benchmarks.simulated_devices import CURVES
from speculative_decoding.doctor.predicted_costs import (
    CHIPS,
    DISPATCH_SECONDS,
    HOST_SECONDS,
    PUBLISHED,
    Chip,
    Work,
    chip_named,
    pass_seconds,
    predicted_costs,
    relative_costs,
)
from speculative_decoding.doctor.recommendation import recommend_length
from tools import predicted_speed

BASE = Work(247_600_000, 165)  # T5-base in 16 bits
WIDE = Work(247_600_000, 206)
STEP = Work(15_700_000, 15)


@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("generation", [1, 2, 3, 4, 5])
def test_costs_rise_with_width_bytes_and_dispatches_and_fall_with_bandwidth(generation: int, bits: int) -> None:
    costs = predicted_costs(Chip(100e9, generation), bits, BASE, WIDE)
    assert relative_costs(Chip(1.0, generation), bits)[1] == 1.0
    assert all(before <= after for before, after in pairwise(costs.passes.values()))
    for narrow, wide in ((BASE._replace(dispatches=200), WIDE), (BASE._replace(nbytes=3e8), WIDE)):
        assert predicted_costs(Chip(100e9, generation), bits, narrow, wide).baseline > costs.baseline
    assert costs.baseline > BASE.nbytes / 100e9  # the time to read the weights
    faster = predicted_costs(Chip(200e9, generation), bits, BASE, WIDE)
    assert all(faster.passes[width] < costs.passes[width] for width in costs.passes)


def test_the_published_costs_are_those_of_the_simulated_devices() -> None:
    curves = [dict(zip(each["rows"], each["cost"], strict=True)) for each in json.loads(CURVES.read_text())["curves"]]
    assert all(published in curves for published in PUBLISHED.values())


def test_drafts_are_not_worthwhile_where_others_found_none_to_be() -> None:
    """M1 Max, quantized: speculative decoding loses at every length (ARahim3/mlx-dspark#38)."""
    large = Work(27e9, 800)
    costs = predicted_costs(Chip(400e9, 1), 4, large, large, STEP)
    assert recommend_length(costs, [0.7], baseline=costs.baseline, has_steps=True) == (0, 1.0)


def test_only_known_chips_have_a_prediction() -> None:
    assert chip_named("Apple M4 Max") is CHIPS["M4 Max"]
    assert chip_named("Apple M4 Max 2") is None and chip_named("AMD EPYC") is None


def test_golden_speeds_of_t5_base() -> None:
    """The baseline is 1 / (247.6 MB / 546 GB/s + 165 * 2.75 us)."""
    found = predicted_speed.speeds(predicted_costs(CHIPS["M4 Max"], 16, BASE, WIDE, STEP))
    assert [round(speed) for speed in found] == [1102, 1229, 1752, 3108]


def test_the_table_has_a_line_for_each_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_speed, "TARGETS", [("t5-small", 16, None), ("t5-3b", 4, "t5-small")])
    heads = [*predicted_speed.lines(["M1", "M4"], draft_models=False)]
    models = [*predicted_speed.lines(["M4"], draft_models=True)]
    assert [len(heads), len(models)] == [4, 3] and all(line.count("|") == heads[0].count("|") for line in heads)
    assert len([*predicted_speed.compared()]) == 7


@pytest.mark.parametrize(
    ("architecture", "layers", "counted"),
    [("T5", 12, 165), ("BART", 12, 204), ("Whisper", 6, 108), ("T5Gemma", 26, 770), ("T5Gemma2", 34, 1000)],
)
def test_the_doctor_counts_about_as_many_dispatches_as_the_graph_has(
    architecture: str, layers: int, counted: int
) -> None:
    """The counts are those of docs/decisions/metal-source.md."""
    found = pass_seconds(Chip(1e30, 4), architecture, 0, layers) - HOST_SECONDS
    assert found == pytest.approx(counted * DISPATCH_SECONDS, rel=0.1)
