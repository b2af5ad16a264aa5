"""Fixtures for calibration: an empty folder for its files, and a clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from speculative_decoding.draft_length import calibration, probe
from speculative_decoding.draft_length.planner import STORES
from speculative_decoding.draft_length.store import CALIBRATION_VARIABLE
from tests.support.fake_probe import Clock


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return an empty folder for calibration files, and unset the variable that names a file."""
    monkeypatch.delenv(CALIBRATION_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    STORES.clear()
    yield tmp_path / "cache/speculative-decoding/calibration"
    STORES.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of calibration and of the probe."""
    clock = Clock()
    for module in (calibration, probe):
        monkeypatch.setattr(module, "time", clock)
    return clock
