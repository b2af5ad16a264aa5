"""Collects the findings of a document, and finds outputs of unusual length."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from .findings import LENGTH, Finding
from .outputs import DecodedPiece
from .pieces import Piece
from .tokens import Literal

FACTOR = 3
MIN_PIECES = 20
MIN_CHARACTERS = 20  # of a piece; the ratios of shorter pieces vary too much


class DocumentFindings:
    """The findings of a document: those of its parts, and outputs of unusual length."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        self._ratios = LengthRatios()

    def add(self, part: Literal | Piece, decoded: DecodedPiece | None) -> None:
        """Add the findings of a part. decoded: its output if it is a piece."""
        if isinstance(part, Literal):
            self._findings += [] if part.finding is None else [part.finding]
        elif decoded is not None:
            self._findings += decoded.findings
            self._ratios.add(part.line, decoded.source, decoded.text)

    def by_line(self) -> list[Finding]:
        return sorted([*self._findings, *self._ratios.outliers()])


class LengthRatios:
    """The ratio of output length to source length for each piece of a document, in twelve bytes each."""

    def __init__(self) -> None:
        self._lines = array("q")
        self._ratios = array("f")

    def add(self, line: int, source: str, output: str) -> None:
        """Add a piece. line: its line in the document, from 1."""
        if len(source) >= MIN_CHARACTERS:
            self._lines.append(line)
            self._ratios.append(len(output) / len(source))

    def outliers(self) -> Iterator[Finding]:
        """Yield findings for ratios under a third or over three times the median, if there are twenty pieces."""
        if len(self._ratios) < MIN_PIECES:
            return
        ratios = np.frombuffer(self._ratios, np.float32)
        median = float(np.median(ratios))
        for i in np.flatnonzero((ratios * FACTOR < median) | (ratios > FACTOR * median)):
            what = f"{ratios[i]:.2g} times as long as the source (median of the document: {median:.2g})"
            yield Finding(self._lines[i], LENGTH, what)
