"""Which words of live speech are final: LocalAgreement-2 (Macháček et al. 2023, arXiv 2307.14743, section 2.1).

Words that two hypotheses in a row begin with are final. They are compared without case and punctuation, which change
more often. This module knows neither audio nor models.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple


class HeardWord(NamedTuple):
    """A word of a hypothesis.

    text: With its leading space and its punctuation.
    tokens: Its text tokens.
    from_draft: Whether all of them were accepted draft tokens.
    """

    text: str
    tokens: Sequence[int]
    from_draft: bool = False

    @property
    def key(self) -> str:
        """The word without case, spaces and punctuation."""
        kept = (each for each in self.text.casefold() if unicodedata.category(each)[0] not in "PSZC")
        return "".join(kept)


class Agreement:
    """The words of the last hypothesis, of which the first `num_final` are final."""

    def __init__(self) -> None:
        self.words: list[HeardWord] = []
        self.num_final = 0

    @property
    def pending(self) -> list[HeardWord]:
        return self.words[self.num_final :]

    def add(self, words: Iterable[HeardWord]) -> list[HeardWord]:
        """Replace the hypothesis by the next one, and return the words that become final."""
        new = [*words]
        keys, new_keys = [each.key for each in self.words], [each.key for each in new]
        num_equal = len([*takewhile(lambda pair: pair[0] == pair[1], zip(keys, new_keys, strict=False))])
        start = self.num_final
        if num_equal < start:  # the hypothesis changed what is final: find where it continues
            start = most_similar_prefix(keys[:start], new_keys)
        self.words = new
        self.num_final = max(start, num_equal)
        return new[start : self.num_final]

    def finish(self, count: int | None = None) -> list[HeardWord]:
        """Make the first `count` words final, by default all, and return those that were not."""
        start, self.num_final = self.num_final, max(self.num_final, len(self.words) if count is None else count)
        return self.words[start : self.num_final]

    def cut(self, count: int) -> list[HeardWord]:
        """Remove the first `count` words, which are final, and return them."""
        cut, self.words = self.words[:count], self.words[count:]
        self.num_final -= count
        return cut


def most_similar_prefix(wanted: Sequence[str], words: Sequence[str]) -> int:
    """Return the length of the prefix of `words` with the smallest edit distance to `wanted`; of several, the longest.

    The longest, because a word is more often corrected than dropped, and must not be written twice.
    """
    distances = [*range(len(words) + 1)]
    for word in wanted:
        diagonal, distances[0] = distances[0], distances[0] + 1
        for i, other in enumerate(words, 1):
            substituted = diagonal + (word != other)
            diagonal = distances[i]
            distances[i] = min(substituted, diagonal + 1, distances[i - 1] + 1)
    smallest = min(distances)
    return max(i for i, distance in enumerate(distances) if distance == smallest)
