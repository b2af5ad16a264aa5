"""Decides which words of live speech are final: LocalAgreement-2 (Macháček et al. 2023, arXiv 2307.14743, section 2.1).

The longest common prefix of two consecutive hypotheses is final. Words are compared without case and punctuation, which
change more often. This module depends on neither audio nor models.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

MIN_REPLACED = 4  # if a hypothesis contains none of at least this many final words, it has skipped them


class HypothesisWord(NamedTuple):
    """A word of a hypothesis.

    text: The word with its leading space and punctuation.
    tokens: The word's text tokens.
    from_draft: Whether all of these were accepted draft tokens.
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
    """The final words of a window, and the rest of the last hypothesis.

    Attributes:
        final: The final words.
        pending: The words of the last hypothesis after the final ones.
        num_final: The number of words before `pending` in the last hypothesis. These words may differ from `final`.
    """

    def __init__(self) -> None:
        self.final: list[HypothesisWord] = []
        self.pending: list[HypothesisWord] = []
        self.num_final = 0
        self._keys: list[str] = []  # the words of the last hypothesis, as keys

    @property
    def leaves_out(self) -> bool:
        """Whether the last hypothesis lacks some of the final words at its end."""
        return not self.pending and self.num_final < len(self.final)

    def add(self, words: Sequence[HypothesisWord]) -> list[HypothesisWord]:
        """Replace the hypothesis with the next one, and return the words that become final."""
        final, self._keys = keys_of(self.final), keys_of(words)
        self.num_final = most_similar_prefix(final, self._keys)
        if len(final) >= MIN_REPLACED and not {*final} & {*self._keys[: self.num_final]}:
            self.num_final = 0  # the hypothesis skips the final words rather than correcting them
        rest = [*words[self.num_final :]]
        pairs = zip(keys_of(self.pending), keys_of(rest), strict=False)
        num_equal = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        self.pending = rest
        return self.finish(self.num_final + num_equal)

    def finish(self, num_words: int | None = None) -> list[HypothesisWord]:
        """Make the hypothesis's first `num_words` words (default: all) final. Returns the newly final words."""
        count = len(self.pending) if num_words is None else max(0, num_words - self.num_final)
        new, self.pending = self.pending[:count], self.pending[count:]
        self.final += new
        self.num_final += count
        return new

    def cut(self, num_words: int | None = None) -> list[HypothesisWord]:
        """Remove and return the final words that match the hypothesis's first `num_words` words. None means all."""
        count = len(self.final)
        if num_words is not None:
            count = most_similar_prefix(self._keys[:num_words], keys_of(self.final))
        cut, self.final = self.final[:count], self.final[count:]
        return cut


def keys_of(words: Iterable[HypothesisWord]) -> list[str]:
    return [word.key for word in words]


def most_similar_prefix(wanted: Sequence[str], words: Sequence[str]) -> int:
    """Return the length of the longest prefix of `words` among those with the smallest edit distance to `wanted`.

    The longest one is chosen because hypotheses correct words more often than they drop words, and because the
    transcript must not repeat words that are already final.
    """
    if wanted == words[: len(wanted)]:
        return len(wanted)
    distances = edit_distances(wanted, words)
    smallest = min(distances)
    return max(i for i, distance in enumerate(distances) if distance == smallest)


def edit_distances(wanted: Sequence[str], words: Sequence[str]) -> list[int]:
    """Return the edit distance from `wanted` to each prefix of `words`, beginning with the empty one."""
    distances = [*range(len(words) + 1)]
    for word in wanted:
        diagonal, distances[0] = distances[0], distances[0] + 1
        for i, other in enumerate(words, 1):
            substituted = diagonal + (word != other)
            diagonal = distances[i]
            distances[i] = min(substituted, diagonal + 1, distances[i - 1] + 1)
    return distances
