"""The draft lengths that need no costs: a fixed number, and Hugging Face's two schedules."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from ..errors import InputError
from .base import Choice, Drafted, DraftLength


class Schedule(DraftLength):
    """The same number of tokens for every row."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Tokens in the next round."""

    def choose(self, rows: Sequence[Choice]) -> list[tuple[str, int]]:
        return [(row.kinds[0], min(self.count, row.room)) if row.kinds else ("", 0) for row in rows]


class FixedLength(Schedule):
    """Always `most` tokens; Hugging Face's schedule "constant"."""

    def __init__(self, most: int) -> None:
        if most < 0:
            raise InputError(f"num_draft must be >= 0, not {most}")
        self.most = most

    @property
    def count(self) -> int:
        return self.most

    def skips_round(self) -> bool:
        return self.most == 0

    def describe(self) -> str:
        return f"drafts {self.most} tokens a round"


class HeuristicLength(Schedule):
    """Two more after a draft that was accepted whole, else one fewer, but at least one.

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

    @property
    def count(self) -> int:
        return self._count

    def begin(self) -> None:
        if self._transient:
            self._count = self._start

    def observe(self, rows: Sequence[Drafted], seconds: float) -> None:
        for row in rows:
            if row.drafted:
                step = 2 if row.accepted == row.drafted else -1
                self._count = max(1, min(self.most, self._count + step))

    def describe(self) -> str:
        return f"drafts {self._count} tokens a round by now, {self._start} at first"
