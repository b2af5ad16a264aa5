"""The widths of an engine's passes: which there are, and whether they are exact."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .costs import RoundCosts


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
        refine: Spends a moment on rough costs for a number of rows, and updates `costs`.
    """

    costs: Callable[[int], RoundCosts]
    exact: bool = False
    any_width: bool = False
    reserved: int | None = None
    refine: Callable[[int], None] | None = None

    def width(self, rows: int, tokens: int) -> int:
        """The width of a pass over this many tokens."""
        return self.costs(rows).width(tokens)

    def max_width(self, rows: int) -> int:
        """The width that no pass may exceed."""
        return max(self.costs(rows).passes) if self.exact and not self.any_width else sys.maxsize

    def chunks(self, rows: int, tokens: int) -> Iterator[tuple[int, int, int]]:
        """Split a prefix of `tokens` tokens into passes: yields (start, count, width).

        Exact passes may need several of them; otherwise there is one, without padding.
        """
        limit = self.max_width(rows)
        chunk = min(tokens, limit) or 1
        for start in range(0, tokens, chunk):
            count = min(chunk, tokens - start)
            yield start, count, count if limit == sys.maxsize else self.width(rows, count)


NO_COSTS = RoundCosts({})


def no_costs(rows: int) -> RoundCosts:
    """For passes that are never padded."""
    return NO_COSTS


UNPADDED = PassWidths(no_costs)
ALL_EXACT = PassWidths(no_costs, exact=True, any_width=True)  # unpadded, where any width gives the same bits
