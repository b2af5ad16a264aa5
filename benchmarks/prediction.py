"""The speed-up that costs and acceptance promise for every draft length, from the rounds of a single long one.

Arithmetic on counts and seconds; knows nothing of tokens or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from speculative_decoding.decoding.stats import GenerationStats
from speculative_decoding.draft_length.costs import Costs
from speculative_decoding.draft_length.schedules import DraftLength
from speculative_decoding.drafters.base import MODEL


@dataclass(frozen=True)
class Cycle:
    """A round as far as speed goes.

    asked: how many tokens were to be drafted. drafted: how many were. accepted: how many of them the output has.
    cut: the output ended inside the draft, so what stands behind the accepted tokens was never tested.
    kind: `Drafter.kind`.
    """

    asked: int
    drafted: int
    accepted: int
    cut: bool = False
    kind: str = ""


class Watched(DraftLength):
    """Decides as another one does, and keeps the cycles of the requests, which come one after another."""

    def __init__(self, length: DraftLength) -> None:
        self.length, self.most = length, length.most
        self.cycles: list[Cycle] = []

    def begin(self) -> None:
        self._request = len(self.cycles)
        self.length.begin()

    def next(self, most: int, kind: str = "") -> int:
        self._asked = self.length.next(most, kind)
        return self._asked

    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None:
        self.cycles.append(Cycle(self._asked, drafted, accepted, kind=kind))
        self.length.observe(drafted, accepted, seconds, kind)

    def end(self, stats: GenerationStats) -> None:
        """The request is over. In its last round the rule may have accepted more than the output took."""
        *earlier, last = self.cycles[self._request :]
        accepted = stats.accepted_tokens - sum(cycle.accepted for cycle in earlier)
        written = stats.generated_tokens - sum(cycle.accepted + 1 for cycle in earlier)
        self.cycles[-1] = replace(last, accepted=accepted, cut=written == accepted)

    def describe(self) -> str:
        return self.length.describe()


def acceptance_by_position(cycles: Sequence[Cycle]) -> list[float]:
    """For each position up to the longest draft asked for: the chance that the drafter has a token there and that it
    is accepted, given that all before it were. Where nothing was tested, as likely as at the position before.
    """
    found: list[float] = []
    for position in range(1, max((cycle.asked for cycle in cycles), default=0) + 1):
        hits = sum(cycle.accepted >= position for cycle in cycles)
        misses = sum(cycle.accepted == position - 1 < cycle.asked and not cycle.cut for cycle in cycles)
        found.append(hits / (hits + misses) if hits + misses else found[-1] if found else 0.0)
    return found


def predicted_speedups(cycles: Sequence[Cycle], costs: Costs) -> list[float]:
    """S(g) for g = 0, 1, ... up to the longest draft asked for, over regular decoding: S(0) = 1.

    S(g) = E(g) / (t(g + 1) + s + g c + h) (Leviathan et al. 2023, section 3.3), in units of S(0), with an acceptance
    per position: E(g) = 1 + a_1 + a_1 a_2 + ... + a_1...a_g. A drafter may propose fewer than g tokens, so the time is
    the mean over what it did propose; only a draft model's tokens cost s and c.
    """
    acceptance = acceptance_by_position(cycles)
    whole = [cycle for cycle in cycles if cycle.asked == len(acceptance)]  # not cut short by the end of the output
    tokens = list(accumulate(accumulate(acceptance, mul, initial=1.0)))
    free = costs.with_free_draft()
    plain, speedups = costs.round_seconds(0), []
    for count, expected in enumerate(tokens):
        rounds = [(costs if each.kind == MODEL else free).round_seconds(min(each.drafted, count)) for each in whole]
        speedups.append(expected * plain * len(rounds) / sum(rounds) if rounds else 1.0)
    return speedups
