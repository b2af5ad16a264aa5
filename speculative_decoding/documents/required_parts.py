"""Finds the parts of a piece that must survive, those missing from its outputs, and the text to decode around them."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from . import survival
from .pieces import Piece, divide
from .results import DecodedPiece
from .splitting import Span, fitting_spans, needs_decoding, overlaps
from .tokens import Text, Token

WORDS = re.compile(r"\w(?:.*\w)?", re.DOTALL)  # from the first to the last letter or digit
SYMBOLS = ("So", "Sm", "Sc", "Sk", "No")  # Unicode categories
INVISIBLE = ("Zs", "Cf")
SCRIPT = re.compile(
    "(?P<latin>[A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff]+)|(?P<greek>[\u0370-\u03ff\u1f00-\u1fff]+)"
    r"|(?P<cyrillic>[\u0400-\u052f]+)|(?P<other>[^\W\d_A-Za-z\u0080-\u036f\u2070-\u209f]+)"
)
MARKUP_SIGNS = frozenset("<>[]{}|~^\\`*_#$@=")


class RequiredPart(NamedTuple):
    """A part of a piece that must survive: a span from `survival`, a `Kept` text, or a link, whose text may change."""

    start: int
    end: int
    span: survival.Required | None = None
    is_link: bool = False


def required_parts(piece: Piece, terms: Collection[str]) -> list[RequiredPart]:
    """Return the parts of a piece that must survive, in order. Spans within `Kept` text are left out."""
    found = [RequiredPart(mark.start, mark.end, is_link=True) for mark in piece.marks if mark.is_link]
    kept = [(mark.start, mark.end) for mark in piece.marks if mark.is_kept]
    found += [RequiredPart(*span) for span in kept]
    spans = [span for span in survival.must_survive(piece.text, terms) if not overlaps((span.start, span.end), kept)]
    taken = [(span.start, span.end) for span in spans]
    own = ((mark, (mark.start, mark.end)) for mark in spelled_marks(piece))
    spans += [mark for mark, place in own if not overlaps(place, kept) and not overlaps(place, taken)]
    found += [RequiredPart(span.start, span.end, span) for span in spans]
    return sorted(found, key=lambda each: each.start)


def spelled_marks(piece: Piece) -> Iterator[survival.Required]:
    r"""Yield the characters that the document escapes, such as "&lt;", and symbols that are written as references."""
    position = 0
    for token in piece.tokens:
        is_spelled = isinstance(token, Text) and token.raw != token.text
        if is_spelled and (token.text in MARKUP_SIGNS or (is_reference(token) and has_category(token.text, SYMBOLS))):
            yield survival.Required(position, position + len(token.text), token.text)
        position += len(token.text)


def lost_characters(piece: Piece, output: str) -> list[str]:
    """Return what the output lacks: symbols, spaces written as references, and words in a minority script."""
    if piece.text.isascii():
        return []
    left = Counter(output)
    left["\u2026"] += output.count("...")
    found: list[str] = []
    position = 0
    for token in piece.tokens:
        for each in token.text:
            if is_special(piece.text, position) or (is_reference(token) and has_category(each, INVISIBLE)):
                left[each] -= 1
                if left[each] < 0:
                    name = each if each.isprintable() else f"U+{ord(each):04X}"
                    found.append(token.raw if is_reference(token) else name)
            position += 1
    words = [(match.lastgroup, match[0]) for match in SCRIPT.finditer(piece.text)]
    sizes = Counter[str | None]()
    for script, word in words:
        sizes[script] += len(word)
    main = max(sizes, key=sizes.__getitem__, default=None)
    return [*found, *(word for script, word in words if script != main and word not in output)]


def is_special(text: str, position: int) -> bool:
    """Return whether a character is a symbol, or a space or format character whose loss changes the text."""
    character = text[position]
    if character.isascii():
        return False
    around = text[max(position - 1, 0) : position] + text[position + 1 : position + 2]
    match unicodedata.category(character):
        case "Zs":  # between a number and its unit, but not before punctuation
            return len(around) == 2 and around.isalnum()
        case "Cf":  # a direction mark, but not a joiner within a word
            return not (len(around) == 2 and around.isalpha())
        case category:
            return category in SYMBOLS or character in "\u2026\u2032\u2033"


def is_reference(token: Token) -> bool:
    return isinstance(token, Text) and token.raw.startswith("&") and len(token.raw) > 1


def has_category(text: str, categories: Collection[str]) -> bool:
    return len(text) == 1 and unicodedata.category(text) in categories


def lost_parts(piece: Piece, required: Sequence[RequiredPart], decoded: DecodedPiece) -> list[RequiredPart]:
    """Return the parts that the outputs lack: missing spans, and kept text and links without a place.

    A span or kept text that was divided between two prompts counts as missing.
    """
    found: list[RequiredPart] = []
    starts = [each.start for each in required]
    parts = (part for part in divide(piece, decoded.spans) if isinstance(part, Piece))
    for part, (start, end), output in zip(parts, decoded.spans, decoded.outputs, strict=True):
        begun = required[bisect_left(starts, start) : bisect_left(starts, end)]
        inside = [each for each in begun if each.end <= end]
        missing = {*survival.lost([each.span for each in inside if each.span], output.text)}
        unplaced = {
            (start + mark.start, start + mark.end)
            for mark, place in zip(part.marks, output.places, strict=True)
            if place is None
        }
        found += [each for each in inside if (each.span in missing if each.span else each[:2] in unplaced)]
        found += [each for each in begun if each.end > end and not each.is_link]
    return found


def spans_around(
    piece: Piece, lost: Sequence[RequiredPart], required: Sequence[RequiredPart], fits: Callable[[str], bool]
) -> list[Span]:
    """Return the spans to decode around the lost parts. The text of a lost link is a separate span.

    Other parts that must survive, such as "{name}" or a link "[1]" at the end of a span, are not divided. The text
    within markup that encloses a lost part is separated from the text outside, so that the markup keeps its place.
    """
    text, letters, removed = piece.text, [*piece.text], frozenset(lost)
    for each in required:
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
