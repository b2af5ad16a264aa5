"""The passes of an engine: which widths there are, whether they are exact, and what a round costs.

Costs have any unit, as long as all have the same. Calibration measures seconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

TYPICAL_TOKENS = 32  # of a request; the draft model's prefill is spread over them


@dataclass(frozen=True)
class RoundCosts:
    """Costs of the parts of a round, for one number of rows.

    Args:
        passes: The target's pass, by width (positions per row). Passes have only these widths; a draft that needs fewer
            positions is padded to the next one.
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

    def width(self, tokens: int) -> int:
        """The width of a pass over this many tokens. Beyond the widest measured pass, it is the number of tokens."""
        return min((width for width in self.passes if width >= tokens), default=tokens)

    @property
    def baseline(self) -> float:
        """The cost of a round without a draft."""
        return self.passes[min(self.passes)] if self.passes else math.inf

    def round_cost(self, draft_tokens: int, steps: int = 0, prefills: int = 0) -> float:
        """The cost of a round; infinite beyond the widest measured pass.

        Args:
            draft_tokens: Tokens of the longest draft.
            steps: Steps of the draft model.
            prefills: Sources that the draft model reads first.
        """
        drafting = self.start + steps * self.step if steps else 0.0
        pass_cost = self.passes.get(self.width(draft_tokens + 1), math.inf)
        return pass_cost + drafting + prefills * self.prefill


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
            yield start, count, count if limit == sys.maxsize else self.costs(rows).width(count)


NO_COSTS = RoundCosts({})


def no_costs(rows: int) -> RoundCosts:
    """For passes that are never padded."""
    return NO_COSTS


UNPADDED = PassWidths(no_costs)
ALL_EXACT = PassWidths(no_costs, exact=True, any_width=True)  # unpadded, where any width gives the same bits
