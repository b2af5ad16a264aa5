"""How many tokens to draft in the next round: the interface, and a fixed number."""

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
    """Always `most` tokens."""

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
