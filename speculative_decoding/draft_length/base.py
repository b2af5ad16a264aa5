"""Policies that choose how many tokens to draft in the next round: the interface, and a fixed length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from ..errors import InputError


class DraftOutcome(Protocol):
    """The part of a `Round` that a policy reads: the kind of draft, its length, and the number of accepted tokens."""

    kind: str
    accepted: int

    @property
    def drafted(self) -> int: ...


class DraftLength(ABC):
    """Chooses the draft lengths of all rows of a round. One object serves all requests of a session."""

    never_drafts = False

    def begin_round(self) -> bool:
        """Called first in every round. Return False to skip drafting; the drafters are then not called."""
        return True

    @abstractmethod
    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        """Choose the draft length of each row.

        Args:
            kinds: The kind of draft that each row would get.
            limits: The maximum length for each row.
        """

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:  # noqa: B027
        """Learn from a round; called after every round with an outcome for each row, drafted or not."""

    @abstractmethod
    def describe(self) -> str:
        """Describe the current state in one line."""


class FixedLength(DraftLength):
    """Always drafts the same number of tokens."""

    def __init__(self, num_draft_tokens: int) -> None:
        if num_draft_tokens < 0:
            raise InputError(f"must be >= 0, not {num_draft_tokens}", "num_draft_tokens")
        self._num_draft_tokens = num_draft_tokens
        self.never_drafts = num_draft_tokens == 0

    def begin_round(self) -> bool:
        return self._num_draft_tokens > 0

    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        return [min(self._num_draft_tokens, limit) for limit in limits]

    def describe(self) -> str:
        return f"drafts {self._num_draft_tokens} tokens a round"
