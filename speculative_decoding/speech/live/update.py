"""What changed in the text of live speech."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from ...decoding.results import GenerationStats


class Piece(NamedTuple):
    """A part of a text. from_draft: whether all of its tokens were accepted draft tokens."""

    text: str
    from_draft: bool


def merge_pieces(pieces: Iterable[Piece]) -> list[Piece]:
    """Join neighbors with the same `from_draft`."""
    runs = groupby(pieces, attrgetter("from_draft"))
    return [Piece("".join(piece.text for piece in run), from_draft) for from_draft, run in runs]


class LiveUpdate(NamedTuple):
    """The text after a hypothesis.

    Args:
        final: What has become final with this update, with its leading space. All of these, joined, are the transcript.
        pending: The rest of the last hypothesis, which may change.
        seconds: How much audio has been heard.
        stats: Counts and times of the hypothesis.
        language: The language of the speech; None if it is not known yet.
        is_last: Whether the input has ended and everything is final.
        pieces: The parts of `final`, in order.
        error: Why the stream ended early, such as logits that are not finite.
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
        """Nothing: unlike a recording, a stream has no result beside its updates."""
