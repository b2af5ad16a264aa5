"""Costs estimated from timings and rounds. Pure arithmetic with seeded noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from itertools import combinations, pairwise

import pytest

from speculative_decoding.draft_length.costs import (
    ALL_WIDTHS,
    MAX_WIDTH,
    MAX_WIDTHS,
    CostCurve,
    RoundTimes,
    Timing,
    monotone,
    useful_widths,
)


@pytest.mark.parametrize("seed", range(3))
def test_monotone_is_isotonic_regression(seed: int) -> None:
    """Compare with brute force over all partitions into pools of equal values."""
    rng = random.Random(seed)
    values = [rng.uniform(1.0, 3.0) for _ in range(7)]

    def pooled(cuts: tuple[int, ...]) -> list[float]:
        parts = [values[low:high] for low, high in pairwise((0, *cuts, len(values)))]
        return [sum(part) / len(part) for part in parts for _ in part]

    curves = [pooled(cuts) for count in range(7) for cuts in combinations(range(1, 7), count)]
    rising = [curve for curve in curves if curve == sorted(curve)]
    closest = min(rising, key=lambda curve: sum((a - b) ** 2 for a, b in zip(curve, values, strict=True)))
    assert [*monotone(dict(enumerate(values))).values()] == pytest.approx(closest)


def measured(measure: Callable[[int], float], most: int = 30) -> tuple[CostCurve, dict[int, Timing]]:
    """Time the least certain width, until all are known or `most` timings have been made, each of three runs."""
    timings: dict[int, Timing] = {}
    width: int | None = 1
    for first in (MAX_WIDTH, 2, *[None] * most):
        for _ in range(3):
            assert width is not None
            timings[width] = timings[width].add(measure(width)) if width in timings else Timing(measure(width), 1)
        curve = CostCurve(ALL_WIDTHS, timings)
        width = first or curve.least_certain(MAX_WIDTHS)
        if width is None:
            break
    return curve, timings


@pytest.mark.parametrize("step", [2, 3, 9, MAX_WIDTH - 1, MAX_WIDTH])
def test_a_step_is_found_at_any_width(step: int) -> None:
    """The widest pass below the step is kept, so a draft that fits into it is not padded beyond the step."""
    rng = random.Random(step)
    curve, timings = measured(lambda width: (1.0 if width < step else 2.0) * rng.uniform(0.98, 1.02))
    costs = curve.costs()
    assert step - 1 in useful_widths(costs, MAX_WIDTHS)
    assert max(costs[width] for width in range(1, step)) < 1.1 and min(costs[i] for i in range(step, 18)) > 1.8
    assert len(timings) <= MAX_WIDTHS
    assert [*costs] == [*ALL_WIDTHS] and [*costs.values()] == sorted(costs.values())


def test_a_flat_curve_keeps_two_widths() -> None:
    assert useful_widths({width: 1.0 if width == 1 else 2.0 for width in ALL_WIDTHS}, 9) == [1, MAX_WIDTH]


@pytest.mark.parametrize("most", [2, 4, 9])
def test_few_widths_are_used(most: int) -> None:
    widths = useful_widths({width: 1.0 + 0.1 * width for width in ALL_WIDTHS}, most)
    assert len(widths) <= most and widths[0] == 1 and widths[-1] == MAX_WIDTH and widths == sorted(widths)


def largest_error(costs: Mapping[int, float], truth: Callable[[int], float]) -> float:
    """The largest error of a ratio of costs, as a logarithm."""
    errors = [math.log(costs[width] / truth(width)) for width in ALL_WIDTHS]
    return max(errors) - min(errors)


@pytest.mark.parametrize("seed", range(5))
def test_timings_beside_other_programs_are_smoothed(seed: int) -> None:
    """Two of three runs are interrupted, so a timing is wrong by up to a factor of three."""
    rng = random.Random(seed)

    def truth(width: int) -> float:
        return 1.0 + 0.07 * width

    def measure(width: int) -> float:
        return truth(width) * rng.choice((1.0, 2.5, 3.0)) * rng.uniform(0.9, 1.1)

    curve, _ = measured(measure, 12)
    assert largest_error(curve.costs(), truth) < 0.45


@pytest.mark.parametrize("seed", range(5))
def test_rounds_correct_the_ratios_also_of_widths_without_rounds(seed: int) -> None:
    """Rounds have work on the host, and beside other programs, all of them take longer."""
    rng = random.Random(seed)

    def of_pass(width: int) -> float:
        return 1.0 + (width >= 9) + 0.02 * width

    def truth(width: int) -> float:
        return 2.5 * (of_pass(width) + 0.1 * width)

    curve, _ = measured(lambda width: of_pass(width) * rng.uniform(0.98, 1.02))
    costs = curve.costs()
    rounds = RoundTimes()
    for _ in range(300):
        width = rng.choice((1, 5, 8, 17))
        drafting = 0.1 * (width - 1)
        seconds = truth(width) + 2.5 * drafting
        rounds.add(width, seconds * rng.choice((0.6, 1.4)), costs[width], drafting)
    corrected = curve.costs(rounds)
    assert largest_error(costs, truth) > 0.4 and largest_error(corrected, truth) < 0.3
    assert corrected[9] > 1.3 * corrected[8]  # the step remains
    assert corrected[1] == pytest.approx(costs[1], rel=0.5)  # only ratios are corrected


def test_rounds_of_a_width_that_is_no_longer_used_are_forgotten() -> None:
    """A server runs millions of rounds, after which the weight of the first ones would be zero."""
    curve, _ = measured(lambda width: 1.0 + 0.05 * width)
    costs = curve.costs()
    rounds = RoundTimes()
    rounds.add(9, 5.0 * costs[9], costs[9], 0.0)
    for _ in range(5000):
        rounds.add(5, costs[5], costs[5], 0.0)
    assert [*rounds.by_width] == [5]
    assert curve.costs(rounds) == pytest.approx(costs)


def test_a_round_that_takes_far_longer_has_little_influence() -> None:
    curve, _ = measured(lambda width: 1.0 + 0.05 * width)
    costs = curve.costs()
    usual, with_pause = RoundTimes(), RoundTimes()
    for i in range(100):
        for rounds in (usual, with_pause):
            rounds.add(5, 1000.0 if i == 50 and rounds is with_pause else costs[5], costs[5], 0.0)
            rounds.add(1, costs[1], costs[1], 0.0)
    assert curve.costs(with_pause)[5] == pytest.approx(curve.costs(usual)[5], rel=0.05)


def test_rounds_of_unknown_widths_do_not_count() -> None:
    """Another session with the same target may discard the timing of a wider pass."""
    curve = CostCurve(ALL_WIDTHS, {1: Timing(0.002, 3), MAX_WIDTH: Timing(0.004, 3)})
    rounds = RoundTimes()
    for width in (24, 5, 18, 64):
        rounds.add(width, 0.02, 0.003, 0.0)
    alone = RoundTimes()
    alone.add(5, rounds.by_width[5][1], 0.003, 0.0)
    assert [*curve.costs(rounds).values()] == pytest.approx([*curve.costs(alone).values()])


def test_a_first_round_that_stalls_counts_little() -> None:
    """The longest round is limited by the predicted cost, if no round is known."""
    curve = CostCurve(ALL_WIDTHS, {1: Timing(0.002, 3), MAX_WIDTH: Timing(0.004, 3)})
    costs = curve.costs()
    rounds = RoundTimes()
    for i in range(200):
        width = (4, 8)[i % 2]
        rounds.add(width, 600.0 if i == 0 else costs[width], costs[width], 0.0)
    assert [*curve.costs(rounds).values()] == pytest.approx([*costs.values()], rel=0.05)
