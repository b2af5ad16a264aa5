"""The simulation passes on some devices, and injected faults miss its bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import simulated_devices
from speculative_decoding.draft_length import AdaptiveLength
from speculative_decoding.draft_length.costs import CostCurve, monotone


@pytest.fixture
def some_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a file with one curve, which has a step."""
    curves = json.loads(simulated_devices.CURVES.read_text())["curves"]
    monkeypatch.setattr(simulated_devices, "generated_devices", lambda: [])
    monkeypatch.setattr(simulated_devices, "SEEDS", (0,))
    monkeypatch.setattr(simulated_devices, "LOAD_SEEDS", ())
    path = tmp_path / "curves.json"
    path.write_text(json.dumps({"curves": [curves[3]]}))
    return str(path)


def test_bounds_hold(some_curves: str) -> None:
    assert simulated_devices.main([some_curves]) == 0


def always_eight(self: AdaptiveLength, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
    return [min(8, limit) for limit in limits]


def test_fixed_length_misses_the_bounds(
    some_curves: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AdaptiveLength, "choose", always_eight)
    assert simulated_devices.main([some_curves]) == 1
    assert "missed: minimum of the best fixed length" in capsys.readouterr().err


@pytest.fixture
def some_loads(monkeypatch: pytest.MonkeyPatch) -> list[simulated_devices.Load]:
    monkeypatch.setattr(simulated_devices, "LOAD_SEEDS", (0,))
    return simulated_devices.read_loads(simulated_devices.LOADS)[:2]


def test_bounds_hold_on_a_busy_machine(some_loads: list[simulated_devices.Load]) -> None:
    results = simulated_devices.simulate_loads(some_loads)
    assert len(results) == 15 and simulated_devices.missed_bounds(results, 0.9, 0.96) == []


def test_costs_that_are_timed_once_miss_the_bounds_on_a_busy_machine(
    some_loads: list[simulated_devices.Load], monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_timed(self: CostCurve, rounds: object = None) -> dict[int, float]:
        costs = [timing.cost for timing in self._timings.values()]
        return monotone({width: float(np.interp(width, [*self._timings], costs)) for width in self._widths.tolist()})

    monkeypatch.setattr(CostCurve, "costs", as_timed)
    monkeypatch.setattr(CostCurve, "least_certain", lambda *limits: None)
    results = simulated_devices.simulate_loads(some_loads)
    assert "minimum of the best fixed length" in simulated_devices.missed_bounds(results, 0.9, 0.96)


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    path.write_text("{}")
    assert simulated_devices.main([str(path)]) == 2
