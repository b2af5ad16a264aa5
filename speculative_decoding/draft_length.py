"""How many tokens to draft in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from .errors import InputError


class DraftLength(ABC):
    """Decides the length of each draft."""

    most: int

    @abstractmethod
    def next(self, most: int, kind: str = "") -> int: ...

    def observe(self, drafted: int, accepted: int, seconds: float, kind: str = "") -> None: ...


@dataclass(frozen=True)
class FixedLength(DraftLength):
    most: int

    def __post_init__(self) -> None:
        if self.most < 0:
            raise InputError(f"num_draft must be >= 0, not {self.most}")

    def next(self, most: int, kind: str = "") -> int:
        return min(self.most, most)
