"""Which widths the passes of an engine have, and whether all of them compute the same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from .costs import RoundCosts


class SpeedMonitor:
    """Notices that rounds no longer take what the measured curve says: the device's speed has changed."""

    ROUNDS, TOLERANCE = 50, 1.25

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._usual: float | None = 1.0  # of the time of a round to the prediction; None: to be seen

    def observe(self, predicted: float, seconds: float) -> bool:
        """Whether the curve should be measured again. A difference that stays after that is the host's share of a
        round, which the curve does not have.
        """
        self._ratios.append(seconds / predicted)
        if len(self._ratios) < self.ROUNDS:
            return False
        ratio, self._ratios = median(self._ratios), []
        if self._usual is None:
            self._usual = ratio
        elif max(ratio / self._usual, self._usual / ratio) > self.TOLERANCE:
            self._usual = None
            return True
        return False


@dataclass(frozen=True)
class PassWidths:
    """costs: of a round with a number of rows; its passes are the widths that there are.
    exact: no pass may have another width, for only these give each position the same bits.
    fixed_capacity: the bits depend on the capacity of the cache too, so it must be reserved before the first pass.
    measure_again: measures passes of these widths once more, for so many rows, after which `costs` has changed.
    """

    costs: Callable[[int], RoundCosts]
    exact: bool = False
    fixed_capacity: bool = False
    measure_again: Callable[[int, Sequence[int]], None] | None = None
    monitor: SpeedMonitor = field(default_factory=SpeedMonitor)

    def width(self, rows: int, tokens: int) -> int:
        """Of a pass over so many tokens."""
        return self.costs(rows).width(tokens)

    def max_width(self, rows: int) -> int:
        """No pass may be wider."""
        return max(self.costs(rows).passes) if self.exact else sys.maxsize

    def chunks(self, rows: int, tokens: int) -> Iterator[tuple[int, int, int]]:
        """(start, count, width) of the passes that read so many tokens: one, or as many as exactness takes."""
        most = min(tokens, self.max_width(rows)) or 1
        for start in range(0, tokens, most):
            count = min(most, tokens - start)
            yield start, count, self.width(rows, count) if self.exact else count

    def observe(self, rows: int, drafted: int, steps: int, seconds: float) -> None:
        """What a round took, with `drafted` tokens in its longest draft."""
        if not drafted or self.measure_again is None or rows & (rows - 1):  # costs are those of powers of two
            return
        costs = self.costs(rows)
        predicted = costs.round_seconds(drafted, steps)
        if predicted < float("inf") and self.monitor.observe(predicted, seconds):
            self.measure_again(rows, (costs.width(1), costs.width(drafted + 1)))


UNPADDED = PassWidths(lambda rows: RoundCosts({}))
