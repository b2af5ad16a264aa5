"""The predicted costs of passes on Apple GPUs, and the best draft length for given costs."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulated_devices import CURVES
from speculative_decoding.draft_length.adaptive import LONGEST, OPTIMISM, AdaptiveLength
from speculative_decoding.draft_length.passes import RoundCosts
from speculative_decoding.drafters.base import MODEL
from tools.predicted_speed import __main__ as predicted_speed
from tools.predicted_speed.costs import (
    CHIPS,
    DISPATCH_SECONDS,
    HOST_SECONDS,
    PUBLISHED,
    Chip,
    Work,
    chip_named,
    pass_seconds,
    predicted_costs,
    recommend_length,
    relative_costs,
)
from tools.predicted_speed.traces import count, traced_lines

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
    assert recommend_length(costs, 0.7, costs.baseline) == (0, 1.0)


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
    [("T5", 12, 164), ("BART", 12, 201), ("Whisper", 6, 105), ("T5Gemma", 26, 770), ("T5Gemma2", 34, 1000)],
)
def test_a_pass_has_about_as_many_dispatches_as_the_graph_has(architecture: str, layers: int, counted: int) -> None:
    """The counts are those of docs/decisions/metal-source.md."""
    found = pass_seconds(Chip(1e30, 4), architecture, 0, layers) - HOST_SECONDS
    assert found == pytest.approx(counted * DISPATCH_SECONDS, rel=0.1)


COSTS = [
    RoundCosts({1: 1.0, 2: 1.1, 4: 1.2, 8: 2.0, 16: 3.0}, 0.05, 0.05, 0.3),
    RoundCosts({1: 1.0, 2: 2.0, 32: 2.1}),
    RoundCosts({2: 1.0, 3: 1.4}, 0.5),
    RoundCosts({1: 1.0, 2: 1.9, 4: 3.7}, 0.2),
]


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("rate", [0.01, 0.7, 0.99])
def test_recommendations_equal_those_of_the_adaptive_length(costs: RoundCosts, rate: float) -> None:
    """Its prior becomes the rate after `OPTIMISM` has raised it."""
    recommended, expected_speedup = recommend_length(costs, rate, costs.baseline)
    length = AdaptiveLength(lambda _: costs, prior=[(rate - OPTIMISM) / (1.0 - OPTIMISM)])
    length._lengths[MODEL] = 1  # drafting has begun, so the source costs nothing more
    _, speedup = length._best([MODEL], [LONGEST], costs)
    assert expected_speedup == pytest.approx(speedup)
    assert bool(recommended) == (expected_speedup > 1.0)


def test_exact_passes_are_compared_with_the_fastest_baseline() -> None:
    found = recommend_length(RoundCosts({2: 2.0}), 0.5, 1.0)
    assert found == (1, 0.75)


REPORT: dict[str, Any] = {
    "device": {"kind": "GPU", "name": "Apple M4 Max"},
    "target": {"architecture": "T5", "decoder_layers": 6},
    "precisions": [
        {
            "precision": "float32",
            "pass_bytes": 1000,
            "pass_seconds": 1.0,
            "passes": [
                {"width": width, "seconds": seconds, "exact": width > 1}
                for width, seconds in [(1, 1.0), (2, 1.25), (4, 1.5)]
            ],
            "draft_seconds": {"step": 0.01, "start": 0.0, "source": 0.0},
        },
        {"precision": "4 bits", "pass_bytes": None},
    ],
}


def test_lengths_and_times_are_predicted_for_a_report_of_doctor() -> None:
    lines = [*predicted_speed.report_lines(REPORT)]
    assert "acceptance rate 70%, fast passes: 3 draft tokens, 1.66x" in lines
    assert "acceptance rate 70%, exact passes: 3 draft tokens, 1.66x" in lines
    assert "Exact passes cost 0.0% of the speed at 70%" in lines
    assert re.fullmatch(r"float32: 1000\.000, 0\.\d+", lines[-2]) and lines[-1] == "4 bits: -, -"


def test_an_architecture_without_figures_has_no_prediction() -> None:
    device, target = REPORT["device"], REPORT["target"]
    assert predicted_speed.predicted_pass(device, target, 1000) is not None
    assert predicted_speed.predicted_pass(device, {**target, "architecture": "New"}, 1000) is None


TRACE = """\
=== mx.async_eval at drafters/draft_sampler.py:152 < drafters/head.py:66
rmsfloat32 grid 64,1,1 group 64,1,1 threads | 0:1024@1 1:1024@2
--- commit, dispatches 1, events 1

=== mx.eval at decoding/round.py:97
gemv grid 8,1,1 group 32,1,1 | 0:4@1
gemv grid 8,1,1 group 32,1,1 | 0:4@1
--- commit, dispatches 2, events 1
--- host waits
"""


def test_a_trace_is_counted_by_its_lines(tmp_path: Path) -> None:
    (tmp_path / "head.txt").write_text(TRACE)
    assert count(TRACE.splitlines()) == (3, 2, 1)
    assert [*traced_lines([tmp_path / "head.txt"])][-1] == "| head | 3 | 2 | 1 | 8 us |"
