"""Ways of decoding that are compared with one another: plain decoding, and each drafter with each draft length.

verify and the benchmark share this list. It knows names, not how anything is drafted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Way:
    """A way of decoding by its name in tables; drafter and num_draft_tokens as `GenerationOptions` has them."""

    name: str
    drafter: str
    num_draft_tokens: int | str

    @property
    def keywords(self) -> dict[str, Any]:
        """For `session.generate`, `stream` and `batch`."""
        return {"drafter": self.drafter} | (
            {} if self.drafter == "none" else {"num_draft_tokens": self.num_draft_tokens}
        )

    @property
    def flags(self) -> str:
        """For the command line."""
        return f"--drafter {self.drafter}" + ("" if self == PLAIN else f" --num-draft {self.num_draft_tokens}")


PLAIN = Way("plain", "none", 0)


def ways(drafters: Iterable[str], lengths: Iterable[int | str]) -> list[Way]:
    """Every drafter with every length, each way once; the drafter "none" and the length 0 are plain decoding."""
    lengths = list(lengths)
    found = [
        PLAIN if drafter == "none" or length == 0 else Way(f"{drafter} {length}", drafter, length)
        for drafter in drafters
        for length in lengths
    ]
    return list(dict.fromkeys(found))
