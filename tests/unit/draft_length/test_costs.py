"""The choice of measured widths. Pure arithmetic with seeded noise."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from speculative_decoding.draft_length.costs import MAX_MEASURED_WIDTHS, MAX_WIDTH, measure_widths, monotone


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


@pytest.mark.parametrize("step", [2, 3, 9, MAX_WIDTH - 1, MAX_WIDTH])
def test_a_step_is_found_at_any_width(step: int) -> None:
    """The widest pass below the step is kept, so a draft that fits into it is not padded beyond the step."""
    rng = random.Random(step)
    measured: list[int] = []

    def measure(width: int) -> float:
        measured.append(width)
        return (1.0 if width < step else 2.0) * rng.uniform(0.98, 1.02)

    passes = measure_widths(measure)
    assert step - 1 in passes and max(passes) == MAX_WIDTH
    assert len(measured) == len(set(measured)) <= MAX_MEASURED_WIDTHS
    assert [*passes] == sorted(passes) and [*passes.values()] == sorted(passes.values())


def test_a_flat_curve_keeps_two_widths() -> None:
    assert measure_widths(lambda width: 1.0 if width == 1 else 2.0) == {1: 1.0, MAX_WIDTH: 2.0}
