"""Estimates the costs of passes of all widths from timings. Independent of models and clocks.

The logarithm of a cost has a Gaussian prior over widths. Timings of passes and of whole rounds are noisy observations
of it, and the estimate is the posterior mean (Rasmussen and Williams, "Gaussian Processes for Machine Learning",
section 2.2). On a quiet device, timings agree, and the estimate follows every step of the curve. Beside other programs,
they differ by a factor of three, and the estimate is smoothed across widths (docs/decisions/calibration.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_WIDTH = 17  # the longest draft from a model, plus one token
ALL_WIDTHS = range(1, MAX_WIDTH + 1)
MAX_WIDTHS = 12  # for a single row; MLX traces a graph for each
MAX_POSITIONS = 256  # rows * width of the largest measured pass with several rows
WIDER_WIDTHS = (24, 32, 48, 64)  # for long copies; Metal's matmul tiles have 32 or 64 rows

# Standard deviations of the logarithm of a cost
LEVEL = 5.0  # of all costs: unknown
GROWTH = 0.25  # of a gradual deviation from the prior, for each factor of e in the width
STEP = 0.03  # of a deviation between two neighboring widths
ROUND_GROWTH = 0.15  # of the growth of rounds compared with passes, for each factor of e in the width
ROUND_LEVEL = 0.5  # of the cost of all rounds compared with passes
ROUND_NOISE = 0.35  # of the time of a round
TYPICAL_NOISE = 0.05  # of a timing, if few are known
LEAST_NOISE = 0.01  # of a timing
SIGNIFICANT = 3.0  # number of standard deviations by which a step exceeds the noise
PRECISE = 0.06  # a cost with a smaller deviation is not timed again
ENOUGH_RUNS = 24  # number of timings after which a cost is not timed again

ROUND_DECAY = 0.998  # each round multiplies the weight of earlier rounds by this factor
FORGOTTEN = 0.01  # weight below which the rounds of a width are dropped
LONGEST_ROUND = 4.0  # a round that takes longer than usual by more than this factor counts as if it took this long


class Timing(NamedTuple):
    """Repeated timings of one pass or draft.

    Args:
        cost: The geometric mean.
        runs: The number of timings.
        squares: The sum of the squared deviations of the logarithms.
    """

    cost: float
    runs: int
    squares: float = 0.0

    def add(self, cost: float) -> Timing:
        """Include another timing (Welford's algorithm)."""
        deviation = math.log(cost / self.cost)
        mean = self.cost * math.exp(deviation / (self.runs + 1))
        return Timing(mean, self.runs + 1, self.squares + deviation * math.log(cost / mean))


class RoundTimes:
    """The times of recent rounds, by the width of the pass. A round's time includes drafting and work on the host."""

    def __init__(self) -> None:
        self.count = 0
        self.by_width: dict[int, tuple[float, float, float]] = {}  # total weight, seconds and cost of drafting
        self._slowdown = (0.0, 0.0)  # total seconds and predicted costs

    def add(self, width: int, seconds: float, pass_cost: float, drafting: float) -> None:
        """Add a round.

        Args:
            width: The width of its pass.
            seconds: The time that it took.
            pass_cost: The predicted cost of the pass.
            drafting: The predicted cost of drafting.
        """
        predicted = pass_cost + drafting
        total, expected = self._slowdown
        seconds = min(seconds, LONGEST_ROUND * predicted * (total / expected if self.count else 1.0))
        self.count += 1
        self._slowdown = ROUND_DECAY * total + seconds, ROUND_DECAY * expected + predicted
        self.by_width = {
            each: (ROUND_DECAY * weight, ROUND_DECAY * taken, ROUND_DECAY * drafted)
            for each, (weight, taken, drafted) in self.by_width.items()
            if weight > FORGOTTEN
        }
        weight, taken, drafted = self.by_width.get(width, (0.0, 0.0, 0.0))
        self.by_width[width] = weight + 1.0, taken + seconds, drafted + drafting


class CostCurve:
    """The costs of passes of several widths, estimated from timings of some of them.

    Args:
        widths: The widths, in increasing order.
        timings: Timings of some of them, which include the narrowest.
    """

    def __init__(self, widths: Sequence[int], timings: Mapping[int, Timing]) -> None:
        self._widths = np.array(widths)
        self._log_widths = np.log(self._widths)
        self._timings = {width: timings[width] for width in widths if width in timings}
        known = np.searchsorted(self._widths, [*self._timings])
        logs = np.log([timing.cost for timing in self._timings.values()])
        counts = np.array([timing.runs for timing in self._timings.values()])
        self._variance = self._timing_variance()
        noise = self._variance / counts + LEAST_NOISE**2

        deviations = logs - typical_logs(self._widths)[known]
        steps = STEP**2 * np.diff(self._widths, prepend=0)  # variances
        for low, high in pairwise(range(len(known))):
            rise = max(0.0, logs[high] - logs[low]) ** 2 - SIGNIFICANT**2 * (noise[low] + noise[high])
            if rise > 0.0:  # somewhere between these widths may be a step
                steps[known[low] + 1 : known[high] + 1] += rise / (known[high] - known[low])
        places = np.arange(len(widths))
        prior = (
            LEVEL**2
            + GROWTH**2 * np.outer(self._log_widths, self._log_widths)
            + np.cumsum(steps)[np.minimum.outer(places, places)]
        )
        gain = np.linalg.solve(prior[np.ix_(known, known)] + np.diag(noise), prior[known]).T
        self._logs = typical_logs(self._widths) + gain @ deviations
        self._covariance = prior - gain @ prior[known]

    def _timing_variance(self) -> float:
        """The variance of a timing, estimated from all widths together, because few timings of each are known."""
        timings = self._timings.values()
        typical = 2.0  # weight of `TYPICAL_NOISE`, in timings
        squares = typical * TYPICAL_NOISE**2 + sum(timing.squares for timing in timings)
        return max(LEAST_NOISE**2, squares / (typical + sum(timing.runs - 1 for timing in timings)))

    def least_certain(self, max_widths: int) -> int | None:
        """The width to time next, or None if all ratios of costs are known well enough.

        Narrow widths have more weight, because most drafts are short.

        Args:
            max_widths: The maximum number of widths to time.
        """
        ratios = np.diag(self._covariance) - 2.0 * self._covariance[0] + self._covariance[0, 0]
        ratios[0] = self._variance / self._timings[int(self._widths[0])].runs
        deviations = np.sqrt(np.maximum(ratios, 0.0))
        done = [width for width, timing in self._timings.items() if timing.runs >= ENOUGH_RUNS]
        deviations[np.isin(self._widths, done)] = 0.0
        if len(self._timings) >= max_widths:
            deviations[~np.isin(self._widths, [*self._timings])] = 0.0
        score = np.where(deviations > PRECISE, deviations / self._widths**0.25, 0.0)
        place = int(np.argmax(score))
        return int(self._widths[place]) if score[place] else None

    def costs(self, rounds: RoundTimes | None = None) -> dict[int, float]:
        """Return the costs by width, which never decrease.

        Args:
            rounds: Recent rounds, which correct the ratios of the costs. The correction of a width without rounds
                follows from its neighbors.
        """
        logs = self._logs
        by_width = {} if rounds is None else rounds.by_width
        by_width = {width: by_width[width] for width in self._widths.tolist() if width in by_width}
        if by_width:
            seen = np.searchsorted(self._widths, [*by_width])
            weights, seconds, drafting = np.array([*by_width.values()]).T
            ratios = np.log(seconds / (weights * np.exp(logs[seen]) + drafting))
            ratios -= np.average(ratios, weights=weights)  # how slow all rounds are does not matter
            covariance = (
                self._covariance + ROUND_LEVEL**2 + ROUND_GROWTH**2 * np.outer(self._log_widths, self._log_widths)
            )
            noise = np.diag(ROUND_NOISE**2 / weights)
            logs = logs + np.linalg.solve(covariance[np.ix_(seen, seen)] + noise, covariance[seen]).T @ ratios
        return monotone(dict(zip(self._widths.tolist(), np.exp(logs).tolist(), strict=True)))


def typical_logs(widths: NDArray[np.int64]) -> NDArray[np.float64]:
    """The logarithms of typical costs: a position adds more than on a memory-bound GPU, and less than on a CPU."""
    return np.log1p(0.08 * (widths - 1))


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


def useful_widths(costs: Mapping[int, float], max_widths: int) -> list[int]:
    """The widths that cost clearly less than the next wider one, or that save the most if these are more than allowed.

    The narrowest width is kept for baseline passes, and the widest for long drafts.
    """
    widths = sorted(costs)
    least_saving = 0.03
    while True:
        kept = [widths[-1]]
        for width in reversed(widths[:-1]):
            if width == widths[0] or costs[width] * (1.0 + least_saving) < costs[kept[-1]]:
                kept.append(width)
        if len(kept) <= max(2, max_widths):
            return kept[::-1]
        least_saving *= 1.25


def max_measured_width(rows: int) -> int:
    """The width of the widest pass that is measured."""
    return MAX_WIDTH if rows == 1 else max(1, min(MAX_WIDTH - 1, MAX_POSITIONS // rows))


def wider_widths(rows: int) -> list[int]:
    """The widths beyond `max_measured_width` that are measured if drafts turn out to be long enough for them."""
    return [width for width in WIDER_WIDTHS if rows * width <= MAX_POSITIONS]


def max_number_of_widths(rows: int) -> int:
    """The maximum number of widths that passes have, except wider ones."""
    return MAX_WIDTHS if rows == 1 else 6


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to the first power of two that is at least `most`."""
    return [1 << i for i in range((most - 1).bit_length() + 1)]


def next_power_of_two(rows: int) -> int:
    return 1 << (rows - 1).bit_length()
