"""Finds repetition loops in outputs, a common failure of sequence-to-sequence models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from operator import eq
from typing import NamedTuple

from .code_patterns import END, LETTER, START

MIN_REPEATS = 4
MIN_REPEATS_OF_MARKS = 12  # for text without letters or digits, such as "...." or a rule
MAX_LENGTH = 40  # units of the repeated text: words, marks, or characters of scripts without spaces
MAX_WORD = 20  # characters; a longer word is divided into characters, because it may be a loop without spaces
UNIT = re.compile(rf"{START}{LETTER}{{1,{MAX_WORD}}}+{END}|\S")


class Loop(NamedTuple):
    """A text and the number of its consecutive occurrences."""

    text: str
    times: int

    @property
    def has_words(self) -> bool:
        return any(each.isalnum() for each in self.text)


def loop_in(output: str, source: str) -> str | None:
    """Return a text that occurs at least four times in a row in an output, or None.

    Words may be repeated as often as the source repeats any words, as in "no no no no". The same applies to text
    without words.
    """
    found = [loop for loop in loops(output) if loop.has_words or loop.times >= MIN_REPEATS_OF_MARKS]
    allowed = {True: 0, False: 0}
    for loop in loops(source) if found else ():
        allowed[loop.has_words] = max(allowed[loop.has_words], loop.times)
    return next((loop.text for loop in found if loop.times > allowed[loop.has_words]), None)


def loops(text: str) -> Iterator[Loop]:
    """Yield the loops of a text, shortest repeated text first, in linear time."""
    found = list(UNIT.finditer(text))
    units = [each[0] for each in found]
    for length in range(1, min(MAX_LENGTH, len(units) // MIN_REPEATS) + 1):
        first = 0
        for is_same, run in groupby(map(eq, units, units[length:])):
            count = len(list(run))
            if is_same and count >= length * (MIN_REPEATS - 1):
                yield Loop(text[found[first].start() : found[first + length - 1].end()], count // length + 1)
            first += count
