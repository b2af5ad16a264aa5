"""The simulation passes on some devices, and injected faults miss its bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import simulated_devices
from speculative_decoding.draft_length import AdaptiveLength


@pytest.fixture
def some_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a file with one curve, which has a step."""
    curves = json.loads(simulated_devices.CURVES.read_text())["curves"]
    monkeypatch.setattr(simulated_devices, "generated_devices", lambda: [])
    monkeypatch.setattr(simulated_devices, "SEEDS", (0,))
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


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    path.write_text("{}")
    assert simulated_devices.main([str(path)]) == 2
