"""How many tokens to draft in the next round: the contract, and the schedules that need no measurement.

Strategies know counts and seconds: nothing of tokens, models or drafters. They live across the requests of a session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError


@dataclass(frozen=True)
class Drafted:
    """A row's part of a round: how many tokens were asked for, really proposed, and accepted of these."""

    asked: int
    drafted: int
    accepted: int
    kind: str = ""


class DraftLength(ABC):
    """The loop asks `next` before a round and tells `observe` afterwards.

    most: no draft is longer.
    kind: what kind of draft the round would have (`Drafter.kind`), for kinds differ in cost and in acceptance.
    """

    most: int

    def begin(self) -> None:
        """A new request."""
        return

    @abstractmethod
    def next(self, most: int, kind: str = "") -> int:
        """How many tokens to draft in the coming round, 0 to `most`."""

    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None:
        """What came of it: tokens really proposed (fewer than asked for, or none), how many of them were accepted,
        and the wall-clock seconds of the whole round, 0 if they say nothing, as of one that compiled.
        """
        return

    def rests(self) -> bool:
        """Asked once a round, before all else: whether it drafts nothing, whatever there may be to draft. Then no
        drafter is asked either, `choose` is not called, and the round is observed without a kind.
        """
        return False

    def next_of_rows(self, rows: Sequence[tuple[int, str]]) -> list[int]:
        """`next` for rows whose rounds are one: their (most, kind) -> their lengths."""
        return [self.next(most, kind) for most, kind in rows]

    def choose(self, rows: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[str, int]]:
        """`next_of_rows` where there may be several kinds (`BatchDrafter.kinds`): (most, kinds) -> (kind, length)."""
        first = [(most, kinds[0]) for most, kinds in rows]
        return [(kind, length) for (_, kind), length in zip(first, self.next_of_rows(first), strict=True)]

    def observe_rows(self, rows: Sequence[Drafted], seconds: float) -> None:
        """`observe` for rows whose round was one."""
        for row in rows:
            self.observe(row.drafted, row.accepted, seconds, row.kind)

    @abstractmethod
    def describe(self) -> str:
        """Its state in one line."""


class FixedLength(DraftLength):
    """Always `most` tokens; Hugging Face's schedule "constant"."""

    def __init__(self, most: int) -> None:
        if most < 0:
            raise InputError(f"num_draft must be >= 0, not {most}")
        self.most = most

    def next(self, most: int, kind: str = "") -> int:
        return min(self.most, most)

    def describe(self) -> str:
        return f"drafts {self.most} tokens a round"


class HeuristicLength(DraftLength):
    """Two more after a round that accepted all, else one fewer, but at least one.

    Hugging Face's schedules "heuristic" and, if `transient`, "heuristic_transient", which starts anew with each
    request (transformers, generation/candidate_generator.py, update_candidate_strategy). They start at 20. Two
    differences: there a round without a draft counts as one that accepted all, which would raise the number without
    end for a drafter that finds nothing, so here it does not count; and `most` is a limit, which they do not have.
    """

    def __init__(self, start: int = 20, *, transient: bool = False, most: int = 64) -> None:
        if start < 1:
            raise InputError(f"num_draft must be >= 1 for a heuristic schedule, not {start}; 0 turns drafting off")
        self.most = max(start, most)
        self._start = self._count = start
        self._transient = transient

    def begin(self) -> None:
        if self._transient:
            self._count = self._start

    def next(self, most: int, kind: str = "") -> int:
        return min(self._count, most)

    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None:
        if drafted:
            self._count = min(self.most, self._count + 2) if accepted == drafted else max(1, self._count - 1)

    def describe(self) -> str:
        return f"drafts {self._count} tokens a round by now, {self._start} at first"
