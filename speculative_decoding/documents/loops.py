"""Finds outputs that repeat themselves, as models do that lost their place in the source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from .survival import UNSPACED

REPEATS = 4
MAX_LENGTH = 40  # units of what is repeated: words, punctuation marks, or characters of scripts without spaces
MAX_WORD = 30  # characters; a longer word is divided into characters, because it may be a loop without spaces
UNIT = re.compile(rf"[^\W{UNSPACED}]{{1,{MAX_WORD}}}+(?!\w)|\S")


class Loop(NamedTuple):
    """A text and how many times it appears in succession."""

    text: str
    times: int

    @property
    def is_spoken(self) -> bool:
        return any(each.isalnum() for each in self.text)


def loop_in(output: str, source: str) -> str | None:
    """Return what an output repeats at least four times in succession, or None.

    It may repeat words as often as the source repeats any words ("no no no no"), and punctuation marks likewise.
    """
    for loop in loops(output):
        if not any(each.times >= loop.times and each.is_spoken == loop.is_spoken for each in loops(source)):
            return loop.text
    return None


def loops(text: str) -> Iterator[Loop]:
    """Find the loops of a text, shortest repeated text first, in time that is linear in the text's length."""
    found = list(UNIT.finditer(text))
    units = [each[0] for each in found]
    for length in range(1, min(MAX_LENGTH, len(units) // REPEATS) + 1):
        same = 0  # units in succession that equal the unit `length` before
        for i in range(length, len(units) + 1):
            if i < len(units) and units[i] == units[i - length]:
                same += 1
                continue
            if same >= length * (REPEATS - 1):
                first = i - same - length
                yield Loop(text[found[first].start() : found[first + length - 1].end()], same // length + 1)
            same = 0
