"""How many tokens to draft in the next round: the interface. A policy knows counts and seconds, nothing of tokens, models
or drafters, and lives across the requests of a session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """What a row could draft in the coming round.

    room: the most tokens. kinds: the kinds of draft that it could have ("model", "copy"), which differ in cost and in
    acceptance; the first is preferred where nobody knows better. Empty if there is nothing to draft.
    """

    room: int
    kinds: Sequence[str]


@dataclass(frozen=True)
class Drafted:
    """A row's part of a round: how many tokens were asked for, really proposed, and accepted of these."""

    asked: int
    drafted: int
    accepted: int
    kind: str = ""


class DraftLength(ABC):
    """Before each round the loop calls `skips_round` and, unless that says True, `choose`; afterwards `observe`.

    most: no draft is longer.
    """

    most: int

    def begin(self) -> None:  # noqa: B027  # most have nothing to do
        """A request begins."""

    def skips_round(self) -> bool:
        """Whether the coming round drafts nothing, whatever there may be to draft: then no drafter is asked either,
        `choose` is not called, and the round is observed with nothing asked for.
        """
        return False

    @abstractmethod
    def choose(self, rows: Sequence[Choice]) -> list[tuple[str, int]]:
        """(kind, number of tokens) for each row of the coming round, 0 to its room."""

    def observe(self, rows: Sequence[Drafted], seconds: float) -> None:  # noqa: B027  # most have nothing to do
        """What came of it. seconds: of the whole round, 0 if they say nothing, as of one that compiled a shape."""

    @abstractmethod
    def describe(self) -> str:
        """Its state in one line."""
