"""The probe with real models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.draft_length import probe as module
from speculative_decoding.draft_length.probe import Probe, fastest
from speculative_decoding.drafters import BatchHeadDrafter
from tests.support.tiny import head_drafter, model_drafter, noisy_copy, tiny_model, tiny_whisper


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
    assert probe.pass_seconds(1, 2) == pytest.approx(2e-3)


def test_the_fastest_of_a_few_runs_counts_and_slow_runs_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))

    def timed(*seconds: float) -> tuple[float, int]:
        left = [*seconds]

        def run() -> None:
            nonlocal now
            now += left.pop(0)

        return fastest(run), len(left)

    assert timed(0.003, 0.001, 0.002, 0.001) == (pytest.approx(0.001), 1)
    assert timed(0.03, 0.01) == (pytest.approx(0.03), 1)


def test_a_window_of_audio_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding 30 seconds of speech takes longer than all passes that are timed."""
    model = tiny_whisper()
    assert model.audio is not None
    encoded = model.encode_window(mx.zeros((model.audio.window_frames, model.audio.num_mel_bins)))  # type: ignore[operator]
    monkeypatch.setattr(type(model), "encode_window", None)
    probe = Probe(model)
    assert probe.pass_seconds(2, 3) > 0 and probe.bits(2) and probe.batch_bits(2, 1)
    (noise,) = model.encode_rows([probe._source(0)])
    assert noise.shape == encoded.shape and noise.dtype == encoded.dtype
    expected, cache = model.make_cache(mx.repeat(noise, 2, axis=0)), probe._cache(2)
    assert mx.array_equal(cache.source_mask, expected.source_mask)
    for one, other in zip(cache.layers, expected.layers, strict=True):
        assert [each.shape for each in one.arrays] == [each.shape for each in other.arrays]


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
    monkeypatch.setattr(module, "fastest", lambda run: (passes.append("timed"), run(), 1.0)[2])
    device = Probe(model)
    for width in (1, 3, 1):
        device.pass_seconds(1, width)
    assert passes == ["pass", "timed", "pass", "pass", "timed", "pass", "timed", "pass"]
