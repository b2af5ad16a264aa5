"""Estimates the costs of passes of all widths from a few timings. Independent of models and clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

MAX_WIDTH = 17  # the longest draft from a model, plus one token
ALL_WIDTHS = range(1, MAX_WIDTH + 1)
MAX_MEASURED_WIDTHS = 9  # for a single row
MAX_POSITIONS = 256  # rows * width of the largest measured pass with several rows
WIDER_WIDTHS = (24, 32, 48, 64)  # for long copies; Metal's matmul tiles have 32 or 64 rows


def next_width(costs: Mapping[int, float], candidates: Sequence[int], max_widths: int) -> int | None:
    """Return the width to measure next, or None if the cost of a pass is known well enough.

    Published cost curves have steps (docs/decisions/calibration.md), so the interval with the largest rise is bisected
    until all intervals are flat or enough widths have been measured. Narrow widths carry more weight, because most
    drafts are short.

    Args:
        costs: The costs of the widths that have been measured.
        candidates: The widths that may be measured, in increasing order.
        max_widths: The maximum number of widths to measure.
    """
    for width in (candidates[0], candidates[-1], *candidates[1:2]):
        if width not in costs:
            return width
    if len(costs) >= max_widths:
        return None
    steep = 0.08  # an interval with a smaller relative rise is flat
    rises = []
    for low, high in pairwise(sorted(costs)):
        between = [width for width in candidates if low < width < high]
        rise = costs[high] / costs[low] - 1.0
        if between and rise > steep:
            geometric_mean = (low * high) ** 0.5
            middle = min(between, key=lambda width: abs(width - geometric_mean))
            rises.append((rise / low**1.5, middle))
    return max(rises)[1] if rises else None


def measure_widths(
    measure: Callable[[int], float],
    candidates: Sequence[int] = ALL_WIDTHS,
    max_widths: int = MAX_MEASURED_WIDTHS,
    known: Mapping[int, float] | None = None,
) -> dict[int, float]:
    """Return the costs of passes by width, for `RoundCosts`. At most `max_widths` are used, including known ones."""
    costs = dict(known or {})
    while (width := next_width(costs, candidates, max_widths)) is not None:
        costs[width] = measure(width)
    return drop_redundant_widths(monotone({width: costs[width] for width in sorted(costs)}))


def interpolated(costs: Mapping[int, float]) -> Callable[[int], float]:
    """Return a function that estimates the cost of any width from the costs measured so far (at least one)."""
    slope = 0.08  # relative cost of each additional position: more than on a memory-bound GPU, less than on a CPU
    points = {width: costs[width] for width in sorted(costs)}
    last = max(points)
    if last < MAX_WIDTH:
        points[MAX_WIDTH] = points[last] + slope * points[min(points)] * (MAX_WIDTH - last)
    return lambda width: float(np.interp(width, [*points], [*points.values()]))


def monotone(costs: Mapping[int, float]) -> dict[int, float]:
    """The closest non-decreasing curve (isotonic regression). Wider passes compute more, so any decrease is noise."""
    pools: list[tuple[float, int]] = []  # (mean, number of widths)
    for value in costs.values():
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (mean, count), (next_mean, next_count) = pools[-2:]
            total = count + next_count
            pools[-2:] = [((mean * count + next_mean * next_count) / total, total)]
    values = [mean for mean, count in pools for _ in range(count)]
    return dict(zip(costs, values, strict=True))


def drop_redundant_widths(costs: Mapping[int, float]) -> dict[int, float]:
    """Drop widths that cost nearly as much as the next wider one, because MLX traces a graph for each width.

    The narrowest width is kept for baseline passes.
    """
    least_saving = 0.03
    widths = sorted(costs)
    kept = {widths[-1]: costs[widths[-1]]}
    for width in reversed(widths):
        if width == widths[0] or costs[width] * (1.0 + least_saving) < costs[min(kept)]:
            kept[width] = costs[width]
    return dict(sorted(kept.items()))


def max_measured_width(rows: int) -> int:
    """The width of the widest pass that is measured."""
    return MAX_WIDTH if rows == 1 else max(1, min(MAX_WIDTH - 1, MAX_POSITIONS // rows))


def wider_widths(rows: int) -> list[int]:
    """The widths beyond `max_measured_width` that are measured if drafts turn out to be long enough for them."""
    return [width for width in WIDER_WIDTHS if rows * width <= MAX_POSITIONS]


def max_number_of_widths(rows: int) -> int:
    """The maximum number of widths that are measured."""
    return MAX_MEASURED_WIDTHS if rows == 1 else 6


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to the first power of two that is at least `most`."""
    return [1 << i for i in range((most - 1).bit_length() + 1)]


def next_power_of_two(rows: int) -> int:
    return 1 << (rows - 1).bit_length()
