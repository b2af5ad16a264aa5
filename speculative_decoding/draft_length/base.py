"""How many tokens to draft in the next round: the interface, a fixed number, and the schedules of Hugging Face's
transformers. Knows counts; nothing of tokens, models or time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InputError


class Choice(NamedTuple):
    """A row that may have a draft. room: most tokens it could use. kind: of the draft (`BatchDrafter.kind`)."""

    room: int
    kind: str = ""


class Drafted(NamedTuple):
    """A row's part of a round: how many tokens were asked for, really proposed, and accepted of these."""

    asked: int
    drafted: int
    accepted: int
    kind: str = ""


class DraftLength(ABC):
    """Decides for all rows of a round. It lives across the requests of a session. most: no draft is longer."""

    most: int

    def begin(self) -> None:  # noqa: B027  # most have nothing to do
        """A new request."""

    def skips_round(self) -> bool:
        """Asked first in each round: True means that nobody drafts, and then drafters are not even asked."""
        return False

    @abstractmethod
    def choose(self, rows: Sequence[Choice]) -> list[int]:
        """How many tokens are to be drafted for each row, 0 to its room."""

    def observe(self, rows: Sequence[Drafted]) -> None:  # noqa: B027
        """What came of a round."""

    @abstractmethod
    def describe(self) -> str:
        """Its state in one line."""


class FixedLength(DraftLength):
    """Always `most` tokens; Hugging Face's schedule "constant"."""

    def __init__(self, most: int) -> None:
        if most < 0:
            raise InputError(f"num_draft_tokens must be >= 0, not {most}")
        self.most = most

    def skips_round(self) -> bool:
        return self.most == 0

    def choose(self, rows: Sequence[Choice]) -> list[int]:
        return [min(self.most, row.room) for row in rows]

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
            raise InputError(
                f"num_draft_tokens must be >= 1 for a heuristic schedule, not {start}; 0 turns drafting off"
            )
        self.most = max(start, most)
        self._start = self._count = start
        self._transient = transient

    def begin(self) -> None:
        if self._transient:
            self._count = self._start

    def choose(self, rows: Sequence[Choice]) -> list[int]:
        return [min(self._count, row.room) for row in rows]

    def observe(self, rows: Sequence[Drafted]) -> None:
        for row in rows:
            if row.drafted:
                is_all = row.accepted == row.drafted
                self._count = min(self.most, self._count + 2) if is_all else max(1, self._count - 1)

    def describe(self) -> str:
        return f"drafts {self._count} tokens a round by now, {self._start} at first"
