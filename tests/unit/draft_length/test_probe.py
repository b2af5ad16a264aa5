"""The probe with real models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from speculative_decoding.draft_length import probe as module
from speculative_decoding.draft_length.probe import Probe
from speculative_decoding.drafters import BatchHeadDrafter
from tests.support.tiny import head_drafter, model_drafter, noisy_copy, tiny_model


def test_a_real_probe_detects_a_slower_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a clock that advances with each reading."""
    now, step = [0.0], [1e-3]

    def clock() -> float:
        now[0] += step[0]
        return now[0]

    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock))
    probe = Probe(tiny_model())
    assert probe.pass_seconds(1, 2) == pytest.approx(1e-3)
    step[0] = 2e-3
    assert probe.pass_seconds(1, 2) == pytest.approx(1e-3)  # the fastest so far
    probe.forget()
    assert probe.pass_seconds(1, 2) == pytest.approx(2e-3)


def test_timings_are_repeated_until_the_two_fastest_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SWEEP_SECONDS", float("inf"))
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))

    def settled(*seconds: float) -> tuple[float, bool]:
        runs = iter(seconds)

        def run() -> None:
            nonlocal now
            now += next(runs)

        probe = Probe(tiny_model())
        found = probe.settled(lambda: probe._time(run, "a pass"))
        return found, probe.is_noisy

    assert settled(1, 1.05, 1.1) == pytest.approx((1, False))
    assert settled(4, 3, 2, 1, 5, 1.05) == pytest.approx((1, False))
    assert settled(4, 8, 3, 8, 2, 8, 1, 8) == pytest.approx((1, True))


@pytest.mark.parametrize("kind", ["model", "head"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_real_probe_measures_a_draft(kind: str, rows: int) -> None:
    target = tiny_model()
    make: Any = {"head": lambda: head_drafter(target), "model": lambda: model_drafter(target, noisy_copy(target))}[kind]
    step, start, source = Probe(target, make).draft_seconds(rows)
    assert min(step, start, source) >= 0 and step + start > 0
    assert isinstance(make(), BatchHeadDrafter) == (kind == "head")


def test_the_first_pass_of_a_shape_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It traces the pass and compiles kernels."""
    model = tiny_model()
    passes: list[str] = []
    states = type(model).states
    monkeypatch.setattr(type(model), "states", lambda *given: (passes.append("pass"), states(*given))[1])
    monkeypatch.setattr(Probe, "_time", lambda self, run, *what: (passes.append("timed"), run(), 1.0)[2])
    device = Probe(model)
    for width in (1, 3, 1):
        device.pass_seconds(1, width)
    assert passes == ["pass", "timed", "pass", "pass", "timed", "pass", "timed", "pass"]
