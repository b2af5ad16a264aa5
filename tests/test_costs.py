"""What rounds cost: predicted from shapes, corrected by what rounds take."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest

from speculative_decoding.draft_length import choose_length
from speculative_decoding.draft_length.costs import Costs, RoundTimes, predicted
from speculative_decoding.models.t5 import T5, T5Config

from .simulated_rounds import bundled
from .tiny import tiny_model

MODELS = Path(__file__).parents[1] / "models"
SOME = Costs(position=0.1, step=0.16, reading=0.6)


def shaped_as(name: str) -> T5:
    return T5(T5Config.from_dict(json.loads((MODELS / name / "config.json").read_text())))


def test_of_the_bundled_pair_what_was_measured_is_predicted() -> None:
    """Measured on two x86-64 cores, in passes over one position of one row, or of 8 and 16 rows."""
    with mx.stream(mx.cpu):
        costs = predicted(shaped_as("t5-web-docs"), shaped_as("t5-web-docs-draft"))
    if mx.default_device() == mx.cpu:
        measured = {
            1: {2: 1.15, 4: 1.31, 8: 1.66, 16: 2.55},
            4: {2: 1.28, 4: 1.83, 8: 2.9, 16: 4.86},
            16: {2: 1.47, 4: 2.37, 8: 4.13, 16: 7.79},
        }
        for rows, passes in measured.items():
            for width, seconds in passes.items():
                assert costs.pass_time(rows, width) / costs.pass_time(rows, 1) == pytest.approx(seconds, rel=0.2)
    assert 0.1 <= costs.step <= 0.18 and 0.4 <= costs.reading <= 0.8


def test_a_larger_or_less_quantised_draft_is_predicted_to_cost_more() -> None:
    target = tiny_model(d_model=64, d_kv=32, d_ff=256, num_layers=4)
    drafts = [tiny_model(d_model=64, d_kv=32, d_ff=64 * size, num_layers=size) for size in (1, 2, 4)]
    steps = [predicted(target, draft).step for draft in drafts]
    assert steps == sorted(steps) and steps[0] < steps[2] <= 1.0
    before = predicted(target, drafts[1])
    nn.quantize(drafts[1], group_size=64, bits=4)
    after = predicted(target, drafts[1])
    assert after.step < before.step and after.reading < before.reading


def test_without_a_draft_model_drafting_costs_no_steps() -> None:
    costs = predicted(tiny_model())
    assert costs.step == costs.reading == 0.0
    assert costs.parts(1, 3, 0)[0] > 0 and costs.parts(1, 0, 0) == (0.0, 0.0, 0.0)


def test_a_round_is_as_wide_as_its_pass_is_padded() -> None:
    assert SOME.parts(2, 4, 4)[0] == SOME.parts(2, 5, 5)[0] < SOME.parts(2, 6, 6)[0]
    assert SOME.parts(2, 4, 4)[1] < SOME.parts(2, 5, 5)[1]


def teach(times: RoundTimes, rows: int = 1, rounds: int = 2000, speed: float = 1.0) -> None:
    """Rounds of many shapes on a noisy clock that jumps now and then, and on a machine that becomes slower."""
    dice = random.Random(0)
    for i in range(rounds):
        width = dice.choice([0, 1, 2, 3, 5, 7])
        steps = dice.choice([0, width])
        reading = int(steps > 0 and dice.random() < 0.1)
        seconds = bundled(rows, width, steps, reading) * (speed if i > rounds / 2 else 1.0)
        noise = math.exp(dice.gauss(0, 0.1)) * (3.0 if dice.random() < 0.02 else 1.0)
        times.observe(rows, width, steps, reading, seconds * noise)


def error(times: RoundTimes, rows: int = 1) -> float:
    """The largest, of what any round takes in units of one without a draft."""
    shapes = [(width, steps, reading) for width in (1, 3, 7) for steps in (0, width) for reading in (0, steps > 0)]
    plain = bundled(rows, 0, 0, 0)
    return max(abs(times.round_time(rows, *shape) / (bundled(rows, *shape) / plain) - 1.0) for shape in shapes)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rows", [1, 8])
def test_rounds_correct_what_was_predicted(rows: int, factor: float) -> None:
    times = RoundTimes(Costs(SOME.position * factor, SOME.step * factor, SOME.reading * factor))
    before = error(times, rows)
    teach(times, rows)
    assert error(times, rows) < 0.15
    assert factor == 1.0 or before > 0.2


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_a_machine_that_becomes_slower_is_not_taken_for_dear_drafts(speed: float) -> None:
    times = RoundTimes(SOME)
    teach(times, speed=speed)
    assert error(times) < 0.15


def test_before_a_round_without_a_draft_nothing_is_learned() -> None:
    times = RoundTimes(SOME)
    times.observe(1, 3, 3, 0, 17.0)
    assert times.round_time(1, 3, 3) == 1.0 + sum(SOME.parts(1, 3, 3))


def test_adaptive_length_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    for name in ("encode", "decode", "states"):
        monkeypatch.setattr(type(model), name, None)
    assert choose_length("auto", model, tiny_model(8)).most >= 1
