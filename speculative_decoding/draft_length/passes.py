"""An engine's passes: their possible widths, whether they are exact, and what a round costs.

The width of a pass is the number of positions that it computes in each row. Exact passes compute the same bits for each
position at any of their widths, so drafts do not change any token.

Costs may be in any unit, as long as all costs use the same one. Calibration measures seconds.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

TYPICAL_TOKENS = 32  # output length of a typical request; the draft model's prefill is spread over these tokens


@dataclass(frozen=True)
class RoundCosts:
    """The costs of the parts of a round, for a given number of rows.

    Args:
        passes: The cost of the target's pass, by width (positions per row). Passes have only these widths; a pass that
            needs fewer positions is padded to the next width.
        step: The cost of one draft token of a draft model or draft head.
        start: The fixed cost of drafting with that model or head, added once per round.
        prefill: The cost of the draft model's forward pass over one request's source.
        fastest_baseline: The cost of a baseline round with the fastest pass, if `passes` does not include that pass.
        untimed: The widths of wider passes that can be timed, in increasing order. They are not used until they are
            timed.
    """

    passes: Mapping[int, float]
    step: float = 0.0
    start: float = 0.0
    prefill: float = 0.0
    fastest_baseline: float = 0.0
    untimed: Sequence[int] = ()

    def padded_width(self, positions: int) -> int:
        """The narrowest width in `passes` with at least this many positions, or `positions` itself if there is none."""
        return min((width for width in self.passes if width >= positions), default=positions)

    @property
    def baseline(self) -> float:
        """The cost of a round without a draft."""
        return self.passes[min(self.passes)] if self.passes else math.inf

    def round_cost(self, draft_tokens: int, steps: int = 0, prefills: int = 0) -> float:
        """The cost of a round; infinite if it needs more than the widest measured pass.

        Args:
            draft_tokens: The number of tokens in the longest draft.
            steps: The number of steps that the draft model takes.
            prefills: The number of sources that the draft model must process first.
        """
        drafting = self.start + steps * self.step if steps else 0.0
        pass_cost = self.passes.get(self.padded_width(draft_tokens + 1), math.inf)
        return pass_cost + drafting + prefills * self.prefill


@dataclass(frozen=True)
class PassWidths:
    """The widths that passes may have, and their costs.

    Args:
        costs: The costs of a round, by number of rows. Passes are padded to the widths for which there are costs.
        exact: Whether each position has the same bits in all passes, with and without drafts. If so, passes have only
            these widths, unless `any_width` is set.
        any_width: Whether passes of any width produce the same bits.
        reserved: The number of positions that the KV cache may need beyond the longest output. It is the same with and
            without drafts.
        capacity_borders: The KV-cache capacities at which the bits of a pass change, in increasing order. A cache that
            would reach one of them is allocated in full before the first pass.
        source_borders: The same for source capacities.
        refine: Briefly measures uncertain costs for a number of rows, and updates `costs`.
        observe: Learns costs from a round; see `Calibration.observe`.
    """

    costs: Callable[[int], RoundCosts]
    exact: bool = False
    any_width: bool = False
    reserved: int = 0
    capacity_borders: Sequence[int] = ()
    source_borders: Sequence[int] = ()
    refine: Callable[[int], None] | None = None
    observe: Callable[[int, int, int, float], None] | None = None

    def max_positions(self, rows: int) -> int:
        """The maximum number of positions per row in one pass.

        If passes must be exact, this is the widest exact pass that has been timed; otherwise it is `sys.maxsize`.
        """
        return max(self.costs(rows).passes) if self.exact and not self.any_width else sys.maxsize

    def padded_width(self, rows: int, positions: int) -> int:
        """The width to which a pass over this many positions per row is padded."""
        return self.costs(rows).padded_width(positions)

    def reaches_border(self, capacity: int) -> bool:
        """Whether bits change between passes while a KV cache grows to this capacity."""
        return any(border <= capacity for border in self.capacity_borders)

    def capacity_class(self, capacity: int, source_capacity: int) -> tuple[int, int]:
        """The class of requests with these capacities. Requests of one class keep their bits when batched together."""
        return bisect_right(self.capacity_borders, capacity), bisect_right(self.source_borders, source_capacity)

    def chunks(self, rows: int, tokens: int) -> Iterator[tuple[int, int, int]]:
        """Split a prefix of `tokens` tokens into passes: yields (start, count, width).

        With exact passes, a long prefix may need several passes. Otherwise, there is a single pass, without padding.
        """
        most = self.max_positions(rows)
        chunk = min(tokens, most) or 1
        for start in range(0, tokens, chunk):
            count = min(chunk, tokens - start)
            yield start, count, count if most == sys.maxsize else self.padded_width(rows, count)


NO_COSTS = RoundCosts({})


def no_costs(rows: int) -> RoundCosts:
    """Return empty costs, for passes that are never padded."""
    return NO_COSTS


UNPADDED = PassWidths(no_costs)
ALL_EXACT = PassWidths(no_costs, exact=True, any_width=True)  # unpadded, for targets with the same bits at any width
