"""Finds outputs that the user should check, because they repeat themselves or have an unusual length."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from itertools import groupby
from operator import eq
from typing import NamedTuple

import numpy as np

from .code_patterns import END, LETTER, START
from .findings import LENGTH, Finding
from .pieces import Piece
from .results import DecodedPiece
from .tokens import Literal

MIN_REPEATS = 4
MIN_REPEATS_OF_MARKS = 12  # for text without letters or digits, such as "...." or a horizontal rule
MAX_LENGTH = 40  # units of the repeated text: words, marks, or characters of scripts without spaces
MAX_WORD = 20  # characters; a longer word is divided into characters, because it may be repetition without spaces
UNIT = re.compile(rf"{START}{LETTER}{{1,{MAX_WORD}}}+{END}|\S")
FACTOR = 3
MIN_PIECES = 20
MIN_CHARACTERS = 20  # in a piece; the ratios of shorter pieces vary too much


class Loop(NamedTuple):
    """A string, and how many times in a row it occurs."""

    text: str
    times: int

    @property
    def has_words(self) -> bool:
        return any(each.isalnum() for each in self.text)


def loop_in(output: str, source: str) -> str | None:
    """Return a string that occurs at least four times in a row in an output, or None.

    Words may be repeated as often as the source repeats any words, as in "no no no no". The same applies to strings
    without words.
    """
    found = [loop for loop in loops(output) if loop.has_words or loop.times >= MIN_REPEATS_OF_MARKS]
    allowed = {True: 0, False: 0}
    for loop in loops(source) if found else ():
        allowed[loop.has_words] = max(allowed[loop.has_words], loop.times)
    return next((loop.text for loop in found if loop.times > allowed[loop.has_words]), None)


def loops(text: str) -> Iterator[Loop]:
    """Yield the loops in a text in linear time, those with the shortest repeated string first."""
    found = list(UNIT.finditer(text))
    units = [each[0] for each in found]
    for length in range(1, min(MAX_LENGTH, len(units) // MIN_REPEATS) + 1):
        first = 0
        for is_same, run in groupby(map(eq, units, units[length:])):
            count = len(list(run))
            if is_same and count >= length * (MIN_REPEATS - 1):
                yield Loop(text[found[first].start() : found[first + length - 1].end()], count // length + 1)
            first += count


class DocumentFindings:
    """The findings for a document: those for its parts, and those for outputs of unusual length."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._ratios = LengthRatios()

    def add(self, part: Literal | Piece, decoded: DecodedPiece | None) -> None:
        """Add the findings for a part. decoded: its output if it is a piece."""
        if isinstance(part, Literal):
            self._findings += [] if part.finding is None else [part.finding]
        elif decoded is not None:
            self._findings += decoded.findings
            self._ratios.add(part.line, decoded.source, decoded.text)

    def by_line(self) -> list[Finding]:
        return sorted([*self._findings, *self._ratios.outliers()])


class LengthRatios:
    """The ratio of output length to source length for each piece of a document, using twelve bytes per piece."""

    def __init__(self) -> None:
        self._lines = array("q")
        self._ratios = array("f")

    def add(self, line: int, source: str, output: str) -> None:
        """Add a piece. line: its line in the document, from 1."""
        if len(source) >= MIN_CHARACTERS:
            self._lines.append(line)
            self._ratios.append(len(output) / len(source))

    def outliers(self) -> Iterator[Finding]:
        """Yield findings for ratios under 1/3 or over 3 times the median, if there are at least twenty pieces."""
        if len(self._ratios) < MIN_PIECES:
            return
        ratios = np.frombuffer(self._ratios, np.float32)
        median = float(np.median(ratios))
        for i in np.flatnonzero((ratios * FACTOR < median) | (ratios > FACTOR * median)):
            what = f"{ratios[i]:.2g} times as long as the source (median of the document: {median:.2g})"
            yield Finding(self._lines[i], LENGTH, what)
