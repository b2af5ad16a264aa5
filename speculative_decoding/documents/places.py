"""Finds where inline markup belongs in an output."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import eq

from .code_patterns import LETTER
from .pieces import Mark, Piece
from .splitting import MARKS_TRIED, Span, is_attached, needs_decoding
from .survival import is_within_word

Places = Sequence[Span | None]

MAX_MARKS = 256  # maximum number of marks placed in a piece; each mark is compared with all others
MAX_ENCLOSED = 16  # maximum number of a piece's enclosed texts that are decoded to place markup
MAX_TRIED = 4 * MAX_ENCLOSED
FINAL = " .!?:;,\u3002\uff01\uff1f"
MAX_CANDIDATES = 64  # maximum number of a string's occurrences in an output
JOINER = r"['\u2019.,:\u2010\u2011-]"  # a punctuation mark within a word or a number
DIVIDED = re.compile(rf"{LETTER}{JOINER}?\n{JOINER}?{LETTER}")  # "\n" represents the position
NEAR = 12  # maximum distance of a point from its relative position to match its surroundings, in characters


def enclosed_texts(piece: Piece) -> list[str]:
    """Return the strings that markup encloses. The piece's output is searched for the outputs of these strings."""
    kept = {(mark.start, mark.end) for mark in piece.marks if mark.is_kept}
    found = dict.fromkeys(
        text
        for mark in piece.marks
        if (mark.start, mark.end) not in kept
        and not mark.is_kept
        and (text := piece.text[mark.start : mark.end].strip()) != piece.text.strip()
    )
    return [*islice(filter(needs_decoding, islice(found, MAX_TRIED)), MAX_ENCLOSED)]


def find_places(piece: Piece, output: str, known: Mapping[str, str]) -> Places:
    """Return the place in the output of each mark of the piece, or None for a mark that was not found.

    Kept text is placed first, then markup from the outside in. Markup is placed where the decoded form of its enclosed
    text occurs in the output, or else where the enclosed text itself occurs. Of several occurrences, the one at the
    nearest relative position is chosen. Points are placed by their relative position, but never within a word. The same
    applies to markup that was not found and whose other end is in another piece. If the output equals the piece's text,
    all places stay the same.

    Args:
        known: Enclosed text -> its output, decoded as a separate prompt.
    """
    if output == piece.text:
        return [(mark.start, mark.end) for mark in piece.marks]
    places: list[Span | None] = [None] * len(piece.marks)
    taken: list[tuple[Mark, Span]] = []
    order = sorted(range(len(piece.marks)), key=lambda number: order_of(piece.marks[number]))
    last_point = 0
    for number in order[:MAX_MARKS]:
        mark = piece.marks[number]
        if not piece.text[mark.start : mark.end].strip():
            start, end = (point_place(piece.text, each, output) for each in (mark.start, mark.end))
            last_point = max(start, last_point)  # points stay in order
            places[number] = last_point, max(last_point, end)
        elif place := best_place(piece, mark, output, known, taken) or half_place(piece, mark, output, taken):
            places[number] = place
            taken.append((mark, place))
    return places


def order_of(mark: Mark) -> tuple[bool, int, int]:
    return not mark.is_kept, mark.start - mark.end, mark.start


def best_place(
    piece: Piece, mark: Mark, output: str, known: Mapping[str, str], taken: Sequence[tuple[Mark, Span]]
) -> Span | None:
    text = piece.text
    enclosed = text[mark.start : mark.end]
    if enclosed.strip() == text.strip():
        return 0, len(output)
    alone = known.get(enclosed.strip(), "")
    if enclosed.rstrip() == enclosed.rstrip(FINAL):  # as a separate prompt, a short phrase may gain a full stop
        alone = alone.rstrip(FINAL)
    wanted = [enclosed] if mark.is_kept else [alone, enclosed]
    target = (mark.end - len(enclosed.lstrip())) / len(text)
    words = not is_within_word(text, mark.start), not is_within_word(text, mark.end)
    for candidate in wanted:
        there = [*occurrences(candidate.strip(), output, words, exact=mark.is_kept)]
        if mark.is_kept and len(there) < sum(1 for _ in occurrences(enclosed, text, words, exact=False)):
            return None  # the source contains the text several times, and the output may lack this occurrence
        if found := [each for each in there if all(is_consistent(mark, each, *other) for other in taken)]:
            start, end = min(found, key=lambda place: abs(place[0] / len(output) - target))
            return with_ends(mark, start, end, text, output)
    return None


def half_place(piece: Piece, mark: Mark, output: str, taken: Sequence[tuple[Mark, Span]]) -> Span | None:
    """Return a place by relative position for markup that continues in another piece, or None for other marks."""
    if mark.is_kept or None not in (mark.opening, mark.closing):
        return None
    end = len(output)
    border = point_place(piece.text, mark.end if mark.opening is None else mark.start, output)
    places = [(0, border), (0, 0)] if mark.opening is None else [(border, end), (end, end)]
    return next((each for each in places if all(is_consistent(mark, each, *other) for other in taken)), places[-1])


def with_ends(mark: Mark, start: int, end: int, text: str, output: str) -> Span:
    """Extend a place over enclosed white space, and to the start or end of the output if the mark lacks that token."""
    enclosed = text[mark.start : mark.end]
    start -= min(len(enclosed) - len(enclosed.lstrip()), start - len(output[:start].rstrip()))
    end += min(len(enclosed) - len(enclosed.rstrip()), len(output) - end - len(output[end:].lstrip()))
    if mark.end == len(text) and mark.closing is None and not mark.is_kept:
        end = len(output)
    if mark.start == 0 and mark.opening is None:
        start = 0
    return start, end


def is_consistent(mark: Mark, place: Span, other: Mark, other_place: Span) -> bool:
    """Return whether two places are nested or disjoint in the same way as their marks."""
    if other.start <= mark.start and mark.end <= other.end:
        if not other.is_kept and other_place[0] <= place[0] and place[1] <= other_place[1]:
            return True
        return (mark.start, mark.end) == (other.start, other.end) and place == other_place
    if mark.start <= other.start and other.end <= mark.end:
        return place[0] <= other_place[0] and other_place[1] <= place[1]
    return place[1] <= other_place[0] or other_place[1] <= place[0]


def occurrences(wanted: str, output: str, words: tuple[bool, bool], *, exact: bool) -> Iterator[Span]:
    """Yield the spans at which a string occurs in an output.

    Args:
        wanted: The string.
        words: Whether it must begin at the beginning of a word, and whether it must end at the end of a word.
        exact: Whether case matters.
    """
    pattern = re.compile(f"(?=({re.escape(wanted)}))", 0 if exact else re.IGNORECASE)  # matches may overlap
    for count, match in enumerate(pattern.finditer(output) if wanted else ()):
        if count == MAX_CANDIDATES:
            return
        if not any(each and is_within_word(output, at) for each, at in zip(words, match.span(1), strict=True)):
            yield match.span(1)


def point_place(text: str, position: int, output: str) -> int:
    """Return the position for a point: near its relative position, and never within a word.

    A nearby position between the same classes of characters is preferred. Otherwise, the end of the nearest word is
    chosen. If the output has letters at exactly the same positions as the text, the position stays the same.
    """
    if len(text) == len(output) and all(map(eq, map(str.isalnum, text), map(str.isalnum, output))):
        return position
    if not text[:position].strip() or not text[position:].strip():
        return len(output) if text[:position].strip() else 0
    place = round(position * len(output) / len(text))
    wanted = surroundings(text, position)
    alike = (each for each in around(output, place, NEAR) if surroundings(output, each) == wanted)
    ends = (each for each in around(output, place, len(output)) if surroundings(output, each)[0])
    return next(chain(alike, ends), len(output))


def around(text: str, place: int, reach: int) -> Iterator[int]:
    """Yield the positions that are not within a word, nearest first. reach: the maximum distance in characters."""
    for distance in range(reach + 1):
        for position in (place - distance, place + distance):
            if 0 <= position <= len(text) and not divides_word(text, position):
                yield position


def divides_word(text: str, position: int) -> bool:
    """Return whether a position is within a word, such as "can't" or "1,5", or within one character."""
    if not 0 < position < len(text):
        return False
    border = before(text, position) + "\n" + text[position : position + 2]
    return is_attached(text, position) or DIVIDED.search(border) is not None


def surroundings(text: str, position: int) -> tuple[bool, bool]:
    """Return whether a letter or digit precedes a position, and whether a letter or digit follows it."""
    return before(text, position)[-1:].isalnum(), text[position : position + 1].isalnum()


def before(text: str, position: int) -> str:
    """Return a few characters before a position, without combining marks."""
    near = text[max(position - MARKS_TRIED, 0) : position]
    return "".join(each for each in near if unicodedata.category(each)[0] != "M")
