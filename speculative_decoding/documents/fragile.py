"""What must survive in a piece, what its outputs have lost of it, and the parts to decode around that."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from . import survival
from .outputs import DecodedPiece
from .pieces import Piece, divide
from .splitting import Span, fitting_spans, needs_decoding

WORDS = re.compile(r"\w(?:.*\w)?", re.DOTALL)  # from the first to the last letter or digit


class Fragile(NamedTuple):
    """A part of a piece that must survive: what `survival` requires, a kept text, or a link, whose text may change."""

    start: int
    end: int
    required: survival.Required | None = None
    is_link: bool = False


def fragile_parts(piece: Piece, terms: Collection[str]) -> list[Fragile]:
    """Return the parts of a piece that must survive, in order. Spans within kept texts are left out."""
    found = [
        Fragile(mark.start, mark.end, is_link=mark.is_link) for mark in piece.marks if mark.is_link or mark.is_kept
    ]
    kept = [(each.start, each.end) for each in found if not each.is_link]
    for span in survival.must_survive(piece.text, terms):
        before = bisect_left(kept, (span.end,)) - 1  # the last one that begins before the end
        if before < 0 or kept[before][1] <= span.start:
            found.append(Fragile(span.start, span.end, span))
    return sorted(found, key=lambda each: each.start)


def lost_parts(piece: Piece, fragile: Sequence[Fragile], decoded: DecodedPiece) -> list[Fragile]:
    """Return the parts that the outputs lack: missing spans, and kept texts and links whose place was not found.

    What was divided between two parts is missing, too.
    """
    found: list[Fragile] = []
    starts = [each.start for each in fragile]
    parts = (part for part in divide(piece, decoded.spans) if isinstance(part, Piece))
    for part, (start, end), output in zip(parts, decoded.spans, decoded.outputs, strict=True):
        begun = fragile[bisect_left(starts, start) : bisect_left(starts, end)]
        inside = [each for each in begun if each.end <= end]
        missing = {*survival.lost([each.required for each in inside if each.required], output.text)}
        unplaced = {
            (start + mark.start, start + mark.end)
            for mark, place in zip(part.marks, output.places, strict=True)
            if place is None
        }
        found += [each for each in inside if (each.required in missing if each.required else each[:2] in unplaced)]
        found += [each for each in begun if each.end > end and not each.is_link]
    return found


def spans_around(
    piece: Piece, lost: Sequence[Fragile], fragile: Sequence[Fragile], fits: Callable[[str], bool]
) -> list[Span]:
    """Return the parts to decode around those that were lost. The text of a link is a part of its own.

    Nothing else that must survive is divided, such as "{name}" or a link to "[1]" at the end of a part. Markup around
    what was lost stays, so its text is divided from the rest.
    """
    text, letters, removed = piece.text, [*piece.text], frozenset(lost)
    for each in fragile:
        if each not in removed:
            letters[each.start : each.end] = "_" * (each.end - each.start)
    masked = "".join(letters)
    copied = sorted((each.start, each.end) for each in lost if not each.is_link)
    places = sorted(each[:2] for each in lost)
    after = ((mark, bisect_left(places, (mark.start, mark.start))) for mark in piece.marks)
    around = [(mark.start, mark.end) for mark, i in after if i < len(places) and places[i][1] <= mark.end]
    borders = sorted({0, len(text), *(border for span in [*places, *around] for border in span)})
    found: list[Span] = []
    for start, end in pairwise(borders):
        words = WORDS.search(masked, start, end)
        before = bisect_right(copied, (start, len(text))) - 1
        if words is None or (before >= 0 and end <= copied[before][1]):
            continue
        first, last = words.span()
        if needs_decoding(text[first:last]):
            found += [(first + each[0], first + each[1]) for each in fitting_spans(text[first:last], fits)]
    return found
