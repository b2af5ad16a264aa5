"""The probe with real models."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.draft_length.probe import Probe, time_runs
from speculative_decoding.drafters import BatchHeadDrafter
from speculative_decoding.models.whisper import Whisper
from tests.support.fake_probe import Clock
from tests.support.tiny import audio_frames, head_drafter, model_drafter, noisy_copy, tiny_model, tiny_whisper


def test_passes_are_timed_but_not_the_first_of_a_shape(clock: Clock) -> None:
    """The first one traces the pass and compiles kernels."""
    own, traced = tiny_model(), set[tuple[int, ...]]()

    class Timed(type(own)):  # type: ignore[misc]
        def states(self, tokens: mx.array, cache: Any) -> mx.array:
            clock.now += 0.001 if tokens.shape in traced else 100.0
            traced.add(tokens.shape)
            return super().states(tokens, cache)

    probe = Probe(Timed(own.config))
    for rows, width in ((1, 1), (1, 3), (1, 1), (2, 3)):
        assert probe.pass_seconds(rows, width) == [pytest.approx(0.001)] * 3


def test_a_few_runs_are_timed_and_slow_runs_are_not_repeated(clock: Clock) -> None:
    def timed(*seconds: float) -> list[float]:
        left = [*seconds]

        def run() -> None:
            clock.now += left.pop(0)

        return time_runs(run)

    assert timed(0.003, 0.001, 0.002, 0.001) == pytest.approx([0.003, 0.001, 0.002])
    assert timed(0.03, 0.01) == pytest.approx([0.03])


def test_a_window_of_audio_is_not_encoded() -> None:
    """Encoding 30 seconds of speech takes longer than all passes that are timed."""
    own = tiny_whisper()
    assert own.audio is not None
    encoded = own.encode_rows([audio_frames(positions=own.audio.window_frames // 2)])[0]

    class WithoutEncoder(Whisper):
        def encode_window(self, frames: mx.array) -> mx.array:
            raise AssertionError("a window was encoded")

    model = WithoutEncoder(own.config)  # type: ignore[arg-type]
    model.update(own.parameters())
    probe = Probe(model)
    assert min(probe.pass_seconds(2, 3)) > 0 and probe.bits(2) and probe.batch_bits(2, 1)
    (noise,) = model.encode_rows([probe._source(0)])
    assert noise.shape == encoded.shape and noise.dtype == encoded.dtype
    expected, cache = model.make_cache(mx.repeat(noise, 2, axis=0)), probe._cache(2)
    assert mx.array_equal(cache.source_mask, expected.source_mask)
    for one, other in zip(cache.layers, expected.layers, strict=True):
        assert [each.shape for each in one.arrays] == [each.shape for each in other.arrays]


@pytest.mark.parametrize("kind", ["model", "head"])
def test_a_real_probe_measures_a_draft(kind: str) -> None:
    target = tiny_model()
    make: Any = {"head": lambda: head_drafter(target), "model": lambda: model_drafter(target, noisy_copy(target))}[kind]
    step, start, source = Probe(target, make).draft_seconds(3)
    assert min(step, start, source) >= 0 and step + start > 0
    assert isinstance(make(), BatchHeadDrafter) == (kind == "head")
