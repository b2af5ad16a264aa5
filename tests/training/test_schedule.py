"""The learning rate of a training run."""

from __future__ import annotations

import pytest

from speculative_decoding.training.trainer import Schedule


def test_the_rate_warms_up_in_80_steps_and_falls_to_two_percent_along_a_cosine() -> None:
    schedule = Schedule(0.5, steps=1000)
    rates = [schedule.rate(0, 0.0), schedule.rate(79, 0.0), schedule.rate(999, 0.5), schedule.rate(999, 1.0)]
    assert rates == pytest.approx([0.5 / 80, 0.5, 0.5 * 0.51, 0.01])
