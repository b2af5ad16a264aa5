"""benchmarks.first_run: its verdict on given times. No process is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import first_run


@pytest.mark.parametrize(
    ("first", "measures_again", "status"), [(1.2, False, 0), (1.4, False, 1), (1.2, True, 1), (0.9, False, 0)]
)
def test_slow_first_runs_and_repeated_measurements_are_reported(
    first: float,
    measures_again: bool,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def timed(caches: Path, *options: str) -> tuple[float, bool]:
        calibration = caches / "speculative-decoding" / "calibration"
        if options:
            return 1.0, False
        is_first = not calibration.exists()
        calibration.mkdir(parents=True, exist_ok=True)
        return first, is_first or measures_again

    def no_programs(count: int) -> Iterator[None]:
        yield

    monkeypatch.setattr(first_run, "timed", timed)
    monkeypatch.setattr(first_run, "other_programs", first_run.contextmanager(no_programs))
    assert first_run.main(["--pairs", "3"]) == status
    out = capsys.readouterr().out
    assert f"median {first:.2f}" in out and f"first token: {3 * measures_again}" in out
