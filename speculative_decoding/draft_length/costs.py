"""The cost of a round on this device, from calibration's measurements. Arithmetic only: no models, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

MAX_WIDTH = 17  # the longest draft and one more token; only forced prefixes need wider passes
ALL_WIDTHS = range(1, MAX_WIDTH + 1)
MAX_MEASURED_WIDTHS = 9  # for one number of rows
TYPICAL_TOKENS = 32  # of a request; the draft model's prefill is spread over them


@dataclass(frozen=True)
class RoundCosts:
    """Seconds for the parts of a round, for one number of rows.

    Args:
        passes: Seconds of the target's pass, by width (positions per row). Passes have only these widths; a draft that
            needs fewer positions is padded to the next one.
        step: One draft token of a draft model or draft head.
        start: The fixed cost of drafting with it, added once per round.
        prefill: The draft model's forward pass over one request's source.
        fastest_baseline: A baseline round in the fastest pass, if `passes` leaves that pass out.
    """

    passes: Mapping[int, float]
    step: float = 0.0
    start: float = 0.0
    prefill: float = 0.0
    fastest_baseline: float = 0.0

    @cached_property
    def _widths(self) -> list[int]:
        return sorted(self.passes)

    def width(self, tokens: int) -> int:
        """The width of a pass over this many tokens. Beyond the widest measured pass, it is the number of tokens."""
        at = bisect_left(self._widths, tokens)
        return self._widths[at] if at < len(self._widths) else tokens

    def pass_seconds(self, tokens: int) -> float:
        """Seconds of a pass over this many tokens; infinite beyond the widest measured pass."""
        return self._seconds[tokens] if tokens < len(self._seconds) else float("inf")

    @cached_property
    def _seconds(self) -> list[float]:
        """Seconds by number of tokens, computed once because each round needs many of them."""
        return [self.passes[self.width(tokens)] for tokens in range(self._widths[-1] + 1)] if self.passes else []

    def round_seconds(self, draft_tokens: int, steps: int = 0, prefills: int = 0) -> float:
        """Seconds of a round.

        Args:
            draft_tokens: Tokens of the longest draft.
            steps: Steps of the draft model.
            prefills: Sources that the draft model reads first.
        """
        drafting = self.start + steps * self.step if steps else 0.0
        return self.pass_seconds(draft_tokens + 1) + drafting + prefills * self.prefill

    @property
    def baseline(self) -> float:
        """Seconds of a round without a draft."""
        return self.pass_seconds(1)

    def scaled(self, factors: Mapping[int, float]) -> RoundCosts:
        """The costs after the device's speed changed by these factors at some widths.

        Factors of other widths are interpolated; drafts change by the mean. Factors that differ less than the error of
        their measurement are replaced by their mean.
        """
        measurement_error = 1.25
        mean = sum(factors.values()) / len(factors)
        if max(factors.values()) < measurement_error * min(factors.values()):
            factors = dict.fromkeys(factors, mean)
        known = sorted(factors)
        all_factors = np.interp([*self.passes], known, [factors[width] for width in known]).tolist()
        passes = {
            width: seconds * factor for (width, seconds), factor in zip(self.passes.items(), all_factors, strict=True)
        }
        return RoundCosts(
            passes,
            step=self.step * mean,
            start=self.start * mean,
            prefill=self.prefill * mean,
            fastest_baseline=self.fastest_baseline * mean,
        )


def next_width(
    seconds: Mapping[int, float], candidates: Sequence[int] = ALL_WIDTHS, max_widths: int = MAX_MEASURED_WIDTHS
) -> int | None:
    """Return the width to measure next, or None if the cost of a pass is known well enough.

    Published curves have steps (docs/decisions), so the interval with the largest rise is bisected until all intervals
    are flat or enough widths are measured. Narrow widths count for more, because most drafts are short.

    Args:
        seconds: Of the widths that have been measured.
        candidates: The widths that may be measured, in increasing order.
        max_widths: The most widths to measure.
    """
    for width in (candidates[0], candidates[-1], *candidates[1:2]):
        if width not in seconds:
            return width
    if len(seconds) >= max_widths:
        return None
    steep = 0.08  # an interval with a smaller relative rise is flat
    rises = []
    for low, high in pairwise(sorted(seconds)):
        between = [width for width in candidates if low < width < high]
        rise = seconds[high] / seconds[low] - 1.0
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
    """Return the seconds of a pass by width, for `RoundCosts`: measured, or known, at up to `max_widths` candidates."""
    seconds = dict(known or {})
    while (width := next_width(seconds, candidates, max_widths)) is not None:
        seconds[width] = measure(width)
    return drop_redundant_widths(monotone({width: seconds[width] for width in sorted(seconds)}))


def interpolated(seconds: Mapping[int, float]) -> Callable[[int], float]:
    """Return a rough estimate of the cost of any width from the widths that have been measured so far, at least one."""
    slope = 0.08  # of a position relative to the first: between a memory-bound GPU and a CPU
    points = {width: seconds[width] for width in sorted(seconds)}
    last = max(points)
    if last < MAX_WIDTH:
        points[MAX_WIDTH] = points[last] + slope * points[min(points)] * (MAX_WIDTH - last)
    return lambda width: float(np.interp(width, [*points], [*points.values()]))


def monotone(seconds: Mapping[int, float]) -> dict[int, float]:
    """The closest curve that never falls (isotonic regression). Wider passes compute more, so a fall is noise."""
    pools: list[tuple[float, int]] = []  # mean, number of widths
    for value in seconds.values():
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (mean, count), (next_mean, next_count) = pools[-2:]
            total = count + next_count
            pools[-2:] = [((mean * count + next_mean * next_count) / total, total)]
    values = [mean for mean, count in pools for _ in range(count)]
    return dict(zip(seconds, values, strict=True))


def drop_redundant_widths(seconds: Mapping[int, float]) -> dict[int, float]:
    """Drop widths that cost nearly as much as the next wider one, because MLX traces a graph for each width.

    The narrowest width stays for baseline passes.
    """
    least_saving = 0.03
    widths = sorted(seconds)
    kept = {widths[-1]: seconds[widths[-1]]}
    for width in reversed(widths):
        if width == widths[0] or seconds[width] * (1.0 + least_saving) < seconds[min(kept)]:
            kept[width] = seconds[width]
    return dict(sorted(kept.items()))
