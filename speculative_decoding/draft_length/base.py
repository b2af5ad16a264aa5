"""Policies that choose how many tokens to draft in the next round: the interface, and a policy with a fixed length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from ..errors import InputError


class DraftOutcome(Protocol):
    """The part of a `Round` that a policy reads: the draft's kind and length, and the number of accepted tokens."""

    kind: str
    accepted: int

    @property
    def drafted(self) -> int: ...


class DraftLength(ABC):
    """Chooses the draft lengths of all rows that share this object, such as all requests of a session.

    Attributes:
        never_drafts: Whether nothing is ever drafted for any row, as in a baseline.
    """

    never_drafts = False

    def wants_drafts(self) -> bool:
        """Whether the next round may draft. If not, drafters are not run, and `choose` is not called."""
        return not self.never_drafts

    @abstractmethod
    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        """Choose the maximum number of draft tokens for each row in the next round.

        Args:
            kinds: The kind of draft that each row would receive; see `BatchDrafter.kind_and_limit`.
            limits: The maximum number of tokens that each row can use. A round never drafts more than that, whatever
                this method returns.
        """

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:  # noqa: B027
        """Learn from a round. Called after every round with an outcome for each row, whether or not it had a draft."""

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

    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        return [min(self._num_draft_tokens, limit) for limit in limits]

    def describe(self) -> str:
        return f"drafts {self._num_draft_tokens} tokens a round"
