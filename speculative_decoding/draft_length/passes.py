"""The widths of an engine's passes: which there are, whether they are exact, and whether their costs still hold."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from .costs import RoundCosts


class SpeedMonitor:
    """Detects that rounds no longer take the predicted time, because the device's speed changed."""

    ROUNDS = 50  # whose median is compared
    TOLERANCE = 1.25

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._usual: float | None = 1.0  # measured / predicted time; None until it is known again

    def observe(self, predicted: float, seconds: float) -> bool:
        """Return whether the costs should be measured again.

        If rounds still differ from the prediction after that, the difference is host time, which the costs leave out.
        """
        self._ratios.append(seconds / predicted)
        if len(self._ratios) < self.ROUNDS:
            return False
        ratio = median(self._ratios)
        self._ratios = []
        if self._usual is None:
            self._usual = ratio
        elif max(ratio / self._usual, self._usual / ratio) > self.TOLERANCE:
            self._usual = None
            return True
        return False


@dataclass(frozen=True)
class PassWidths:
    """The widths that passes may have, and their costs.

    Args:
        costs: The costs of a round, by number of rows. Passes are padded to the widths of these costs.
        exact: Passes give each position the same bits, with and without drafts: they have only these widths, unless
            `any_width`.
        any_width: Passes of any width give the same bits.
        reserved: If bits also depend on the KV cache's capacity, it is reserved before the first pass: the longest
            output and this number of positions, which is the same with and without drafts. Otherwise None.
        measure_again: Measures some widths again for a number of rows, and updates `costs`.
        refine: Spends a moment on rough costs for a number of rows, and updates `costs`.
        monitor: Detects that the costs no longer hold.
    """

    costs: Callable[[int], RoundCosts]
    exact: bool = False
    any_width: bool = False
    reserved: int | None = None
    measure_again: Callable[[int, Sequence[int]], None] | None = None
    refine: Callable[[int], None] | None = None
    monitor: SpeedMonitor = field(default_factory=SpeedMonitor)

    def width(self, rows: int, tokens: int) -> int:
        """The width of a pass over this many tokens."""
        return self.costs(rows).width(tokens)

    def max_width(self, rows: int) -> int:
        """The width that no pass may exceed."""
        return max(self.costs(rows).passes) if self._is_limited else sys.maxsize

    @property
    def _is_limited(self) -> bool:
        return self.exact and not self.any_width

    def chunks(self, rows: int, tokens: int) -> Iterator[tuple[int, int, int]]:
        """Split a prefix of `tokens` tokens into passes: yields (start, count, width).

        Exact passes may need several of them; otherwise there is one.
        """
        chunk = min(tokens, self.max_width(rows)) or 1
        for start in range(0, tokens, chunk):
            count = min(chunk, tokens - start)
            yield start, count, self.width(rows, count) if self._is_limited else count

    def observe(self, rows: int, draft_tokens: int, steps: int, seconds: float) -> None:
        """Compare the duration of a round with its prediction.

        Args:
            rows: Rows of the batch.
            draft_tokens: Tokens of the longest draft.
            steps: Steps of the draft model.
            seconds: The measured duration.
        """
        is_measured = rows & (rows - 1) == 0  # costs are measured at powers of two
        if not draft_tokens or self.measure_again is None or not is_measured:
            return
        costs = self.costs(rows)
        predicted = costs.round_seconds(draft_tokens, steps)
        if predicted < float("inf") and self.monitor.observe(predicted, seconds):
            self.measure_again(rows, (costs.width(1), costs.width(draft_tokens + 1)))


NO_COSTS = RoundCosts({})
UNPADDED = PassWidths(lambda rows: NO_COSTS)
