"""Decoding modes for `verify` and the benchmarks: the baseline, and each drafter with each draft length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DecodingMode:
    """A drafter and a draft length, as in `GenerationOptions`, with a name for tables."""

    name: str
    drafter: str
    num_draft_tokens: int | str

    @property
    def keywords(self) -> dict[str, Any]:
        """Keyword arguments for the session's methods."""
        if self == BASELINE:
            return {"drafter": self.drafter}
        return {"drafter": self.drafter, "num_draft_tokens": self.num_draft_tokens}

    @property
    def flags(self) -> str:
        """Command-line flags."""
        if self == BASELINE:
            return f"--drafter {self.drafter}"
        return f"--drafter {self.drafter} --num-draft {self.num_draft_tokens}"


BASELINE = DecodingMode("baseline", "none", 0)


def combine_modes(drafters: Iterable[str], lengths: Iterable[int | str]) -> list[DecodingMode]:
    """Return each combination of drafter and length once. Drafter "none" and length 0 are the baseline."""
    lengths = list(lengths)
    modes = [
        BASELINE if drafter == "none" or length == 0 else DecodingMode(f"{drafter} {length}", drafter, length)
        for drafter in drafters
        for length in lengths
    ]
    return list(dict.fromkeys(modes))
