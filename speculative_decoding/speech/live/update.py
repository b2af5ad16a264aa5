"""The updates of live text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from ...decoding.results import GenerationStats


class Piece(NamedTuple):
    """A part of the text. from_draft: whether all of its tokens were accepted draft tokens."""

    text: str
    from_draft: bool


def merge_pieces(pieces: Iterable[Piece]) -> list[Piece]:
    """Join adjacent pieces with the same `from_draft`."""
    runs = groupby(pieces, attrgetter("from_draft"))
    return [Piece("".join(piece.text for piece in run), from_draft) for from_draft, run in runs]


class LiveUpdate(NamedTuple):
    """The text after a hypothesis.

    Args:
        final: The text that this update makes final, with its leading space. The `final` texts of all updates, joined,
            are the transcript.
        pending: The rest of the last hypothesis, which may change.
        seconds: The duration of the audio so far.
        stats: The counts and times for the hypothesis.
        language: The language of the speech, or None if it is not known yet.
        is_last: Whether the input has ended and everything is final.
        pieces: The parts of `final`, in order.
        error: The error that ended the stream early, such as logits that are not finite.
        number: The number of the stream.
    """

    final: str
    pending: str
    seconds: float
    stats: GenerationStats
    language: str | None = None
    is_last: bool = False
    pieces: tuple[Piece, ...] = ()
    error: Exception | None = None
    number: int = 0

    @property
    def result(self) -> None:
        """Always None. Unlike a recording, a stream has no result other than its updates."""
