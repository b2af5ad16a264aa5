"""What a round costs on this device, as calibration measured it. Arithmetic only: no models, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

MAX_WIDTH = 17  # positions: the longest draft and one more; wider passes, as over a forced prefix, are rare
MAX_MEASURED_WIDTHS = 9  # measured for one number of rows
STEEP = 0.08  # an interval is bisected where the cost rises by more than this over it
SAVING = 0.03  # a width is kept if its pass is at least this much cheaper than the next wider one
ALIKE = 1.25  # ratio of two changes of speed that measurements with an error cannot tell apart
TYPICAL_TOKENS = 32  # of a request, over which reading its source with a draft model is spread


@dataclass(frozen=True)
class RoundCosts:
    """Seconds of the parts of a round, for one number of rows.

    passes: the target's pass by its width, the number of positions that it computes for each row. These are all the
        widths that passes have: a draft that needs fewer positions is padded to the next one.
    step: one drafted token of a draft model or a draft head. start: a draft of theirs besides its steps.
    prefill: encoding a request's source with the draft model.
    fastest_baseline: a round without a draft in the fastest pass there is, where that is not among these.
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
        """The width of a pass over so many tokens; beyond the widest measured one, exactly as many."""
        at = bisect_left(self._widths, tokens)
        return self._widths[at] if at < len(self._widths) else tokens

    def pass_seconds(self, tokens: int) -> float:
        """Infinite for more tokens than the widest pass has positions."""
        return self._seconds[tokens] if tokens < len(self._seconds) else float("inf")

    @cached_property
    def _seconds(self) -> list[float]:
        """By tokens: asked for many times a round."""
        return [self.passes[self.width(tokens)] for tokens in range(self._widths[-1] + 1)] if self.passes else []

    def round_seconds(self, drafted: int, steps: int = 0, prefills: int = 0) -> float:
        """A round whose longest draft has `drafted` tokens, after `steps` steps of the draft model."""
        drafting = self.start + steps * self.step if steps else 0.0
        return self.pass_seconds(drafted + 1) + drafting + prefills * self.prefill

    @property
    def baseline(self) -> float:
        """A round without a draft."""
        return self.pass_seconds(1)

    def restricted_to(self, widths: Sequence[int]) -> RoundCosts:
        """With passes of these widths alone."""
        passes = {width: self.passes[width] for width in self.passes if width in widths}
        return replace(self, passes=passes, fastest_baseline=self.baseline)

    def with_width(self, width: int) -> RoundCosts:
        """With passes of this width too, at the cost of the next wider one."""
        passes = self.passes | {width: self.pass_seconds(width)}  # type: ignore[operator]
        return replace(self, passes=dict(sorted(passes.items())))

    def scaled(self, factors: Mapping[int, float]) -> RoundCosts:
        """After a change of the device's speed by these factors at some widths: others follow by interpolation, and
        drafts by the mean. Factors that differ no more than measurements err are taken for one.
        """
        mean = sum(factors.values()) / len(factors)
        if max(factors.values()) < ALIKE * min(factors.values()):
            factors = dict.fromkeys(factors, mean)
        passes = {width: seconds * interpolate(factors, width) for width, seconds in self.passes.items()}
        return RoundCosts(
            passes, self.step * mean, self.start * mean, self.prefill * mean, self.fastest_baseline * mean
        )


def interpolate(values: Mapping[int, float], at: float) -> float:
    """Linear between the given points, constant outside of them."""
    points = sorted(values)
    above = bisect_left(points, at)
    if above == len(points) or points[above] == at or above == 0:
        return values[points[min(above, len(points) - 1)]]
    low, high = points[above - 1], points[above]
    return values[low] + (values[high] - values[low]) * (at - low) / (high - low)


def measure_widths(
    measure: Callable[[int], float],
    candidates: Sequence[int] = range(1, MAX_WIDTH + 1),
    most: int = MAX_MEASURED_WIDTHS,
) -> dict[int, float]:
    """Seconds of a pass by width, at up to `most` of the candidates: more of them where the cost changes.

    Published curves have steps (docs/decisions), so the interval with the largest rise is bisected until all are flat
    or enough were measured. Narrow widths count for more, for most drafts are short.
    """
    first = [candidates[0], *candidates[1:2], candidates[-1]]
    seconds = {width: measure(width) for width in dict.fromkeys(first)}
    while len(seconds) < most:
        widths = sorted(seconds)
        rises = []
        for low, high in pairwise(widths):
            between = [each for each in candidates if low < each < high]
            rise = seconds[high] / seconds[low] - 1.0
            if between and rise > STEEP:
                middle = min(between, key=lambda each: abs(each - (low * high) ** 0.5))
                rises.append((rise / low**1.5, middle))
        if not rises:
            break
        _, middle = max(rises)
        seconds[middle] = measure(middle)
    return drop_redundant_widths(monotone({width: seconds[width] for width in sorted(seconds)}))


def monotone(seconds: Mapping[int, float]) -> dict[int, float]:
    """The closest curve that never falls (isotonic regression). A wider pass computes no less, so a fall is noise."""
    pools: list[tuple[float, int]] = []  # mean, number of widths
    for value in seconds.values():
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (mean, count), (other, more) = pools[-2:]
            pools[-2:] = [((mean * count + other * more) / (count + more), count + more)]
    values = [mean for mean, count in pools for _ in range(count)]
    return dict(zip(seconds, values, strict=True))


def drop_redundant_widths(seconds: Mapping[int, float]) -> dict[int, float]:
    """Without the widths that cost nearly as much as the next wider one: MLX traces a graph for each width. The
    narrowest stays, of which the baseline's passes are.
    """
    narrowest, *others = sorted(seconds)
    widest = others[-1] if others else narrowest
    kept = {widest: seconds[widest]}
    for width in reversed([narrowest, *others]):
        if width == narrowest or seconds[width] * (1.0 + SAVING) < seconds[min(kept)]:
            kept[width] = seconds[width]
    return dict(sorted(kept.items()))
