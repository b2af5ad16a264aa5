"""Renders decoded pieces with the document's markup, line breaks and character references."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise, repeat
from typing import NamedTuple

from .layout import break_places
from .pieces import Piece, break_spans, divide
from .results import DecodedPiece, DecodedText
from .splitting import gaps
from .tokens import Break, Literal, Text, line_ends

LINE_START = re.compile(r"[\n\r][ \t>]*\Z")  # ">" starts a line of a Markdown quote


class Insertion(NamedTuple):
    """A token to write into an output.

    start, end: The range of the output that it replaces.
    order: The token's index in the piece, or -1 for a break from an earlier piece.
    side: -1 if it ends markup, 1 if it begins markup, otherwise 0.
    nesting: A sort key for insertions with the same place and side, so that markup nests correctly.
    raw: The text to write.
    """

    start: int
    end: int
    order: int
    side: int
    nesting: tuple[int, ...]
    raw: str


class Renderer:
    """Renders the parts of a document in order.

    If an output has too few words for the line breaks of its piece, the remaining breaks move to the next pieces of the
    block. At the end of the block, the remaining required breaks are written.
    """

    def __init__(self) -> None:
        self._breaks: list[Break] = []  # remaining from earlier pieces of the block
        self._starts_line = True  # whether the next text starts a line
        self._column = 0  # length of the current line of the block
        self._source_column = 0  # the same for the source
        self._widest = 0  # length of the source's longest line that ends with a break
        self._whole = ""  # the beginning of a block that must be written as a whole

    def add(self, part: Literal | Piece, decoded: DecodedPiece | None = None) -> str:
        """Return the text to write for a part. decoded: its output if it is a piece.

        A block with `write_whole` is returned as a whole, with its last part.
        """
        text = self._add(part, decoded)
        if part.write_whole is str:
            return text
        whole, self._whole = self._whole + text, ""
        if part.ends_block:
            return part.write_whole(whole)
        self._whole = whole
        return ""

    def _add(self, part: Literal | Piece, decoded: DecodedPiece | None) -> str:
        if isinstance(part, Literal):
            return self._literal(part)
        assert decoded is not None
        inner = iter(divide(part, decoded.spans))
        outputs = iter(decoded.outputs)
        text = "".join(
            self._literal(each) if isinstance(each, Literal) else self._text(each, next(outputs)) for each in inner
        )
        return text + (self._leftover() if part.ends_block else "")

    def _literal(self, literal: Literal) -> str:
        self._pass(literal)
        if not self._breaks:
            return literal.raw
        if line_ends(literal.raw):
            return self._leftover() + literal.raw
        if literal.ends_block:
            return literal.raw + self._leftover()
        if not literal.raw.isspace():
            return literal.raw
        self._column, self._starts_line = 0, True
        return self._breaks.pop(0).raw

    def _pass(self, literal: Literal) -> None:
        """Update the columns to account for a literal that is written."""
        ends_line = line_ends(literal.raw) > 0
        self._starts_line = literal.ends_block or LINE_START.search(literal.raw) is not None
        if ends_line and not literal.ends_block:
            self._widest = max(self._widest, self._source_column)
        if ends_line or literal.ends_block:
            self._column = self._source_column = 0
        else:
            self._column += len(literal.raw)
            self._source_column += len(literal.raw)

    def _leftover(self) -> str:
        """Return the remaining required breaks, and clear all remaining breaks."""
        self._column = self._source_column = 0
        breaks, self._breaks = self._breaks, []
        return "".join(each.raw for each in breaks if each.is_required)

    def _text(self, piece: Piece, output: DecodedText) -> str:
        """Return the text to write for a piece."""
        starts_line, self._starts_line = self._starts_line, False
        first, *others = line_widths(piece)
        if others:
            self._widest = max(self._widest, self._source_column + first, *others[:-1])
        self._source_column = others[-1] if others else self._source_column + first
        if output.text == piece.text and not self._breaks:
            self._column = others[-1] if others else self._column + first
            return piece.raw
        markup = [*markup_of(piece, output)]
        own = [(index, token) for index, token in enumerate(piece.tokens) if isinstance(token, Break)]
        breaks = [*((-1, each) for each in self._breaks), *own]
        widths = [*(0 for _ in self._breaks), first, *others]
        places = break_places(unbroken(piece, output), widths, limit=self._widest, column=self._column)
        self._column = len(output.text) - places[-1][1] if places else self._column + len(output.text)
        laid = [
            Insertion(start, end, index, 0, (0,), each.raw)
            for (start, end), (index, each) in zip(places, breaks, strict=False)
        ]
        self._breaks = [each for _, each in breaks[len(places) :]]
        return written(piece, output.text, ordered([*laid, *markup]), starts_line)


def unbroken(piece: Piece, output: DecodedText) -> str:
    """Return the output with word joiners inside markup that is on one line in the source, to prevent breaks there."""
    breaks = [start for start, _ in break_spans(piece.tokens)]
    letters = [*output.text]
    for mark, place in zip(piece.marks, output.places, strict=True):
        if place and place[0] < place[1] and bisect_left(breaks, mark.start) == bisect_left(breaks, mark.end):
            letters[place[0] + 1 : place[1]] = "\u2060" * (place[1] - place[0] - 1)
    return "".join(letters)


def line_widths(piece: Piece) -> list[int]:
    """Return the length of each line in a piece."""
    return [end - start for start, end in gaps(break_spans(piece.tokens), len(piece.text))]


def written(piece: Piece, text: str, insertions: Sequence[Insertion], starts_line: bool) -> str:
    """Return an output with its markup and line breaks. Each insertion replaces a range of the output."""
    starts = [starts_line, *(each.order < 0 or isinstance(piece.tokens[each.order], Break) for each in insertions)]
    runs, position = [], 0
    for each in insertions:
        runs.append(text[position : each.start])
        position = max(position, each.end)
    runs = spelled([*runs, text[position:]], piece)
    runs = [piece.write_start(run) if is_first else run for is_first, run in zip(starts, runs, strict=True)]
    return runs[0] + "".join(each.raw + run for each, run in zip(insertions, runs[1:], strict=True))


def markup_of(piece: Piece, output: DecodedText) -> Iterator[Insertion]:
    """Yield an insertion for each token of the piece's markup that has a place."""
    for mark, place in zip(piece.marks, output.places, strict=True):
        if place is None:
            continue
        start, end = place
        if mark.is_kept and mark.opening is not None:
            yield Insertion(start, end, mark.opening, 0, (0,), piece.tokens[mark.opening].raw)
            continue
        side = 0 if start == end or None in (mark.opening, mark.closing) else 1
        if mark.opening is not None:
            yield Insertion(start, start, mark.opening, side, (-end, start), piece.tokens[mark.opening].raw)
        if mark.closing is not None:
            yield Insertion(end, end, mark.closing, -side, (-start, end), piece.tokens[mark.closing].raw)


def ordered(insertions: Iterable[Insertion]) -> list[Insertion]:
    """Sort insertions. Insertions at the same place keep the order of the source, unless markup would cross."""
    found: list[Insertion] = []
    by_place = sorted(insertions, key=lambda each: (each.start, each.start < each.end, each.order))
    for _, group in groupby(by_place, lambda each: each.start):
        together = [*group]
        sides = [each.side for each in together if each.side]
        if sides != sorted(sides):  # markup ends after the beginning of other markup
            together.sort(key=lambda each: (each.side, each.nesting, each.order))
        found += together
    return found


def spelled(runs: Sequence[str], piece: Piece) -> list[str]:
    """Return text runs with characters spelled as in the document.

    A piece may spell a character in a special way, such as "&amp;" for "&". If the runs contain the character as often
    as the piece does, the n-th occurrence gets the spelling of the piece's n-th occurrence. Otherwise, every occurrence
    gets the piece's most frequent special spelling. A bare "&" is kept only in the first case, and only if the same
    character follows it, because it could become markup elsewhere.
    """
    count = Counter("".join(runs))
    next_of: dict[str, Iterator[tuple[str, str]]] = {}
    for character, found in spellings(piece).items():
        special = Counter(each for each in found if each[0] != character)
        if count[character] == len(found):
            next_of[character] = iter(found)
        elif special:
            next_of[character] = repeat(special.most_common(1)[0][0])
    if not next_of:
        return [piece.write(run) for run in runs]
    pattern = re.compile(f"[{re.escape(''.join(next_of))}]")

    def spell(run: str) -> Iterator[str]:
        position = 0
        for match in pattern.finditer(run):
            yield piece.write(run[position : match.start()])
            position = match.end()
            raw, before = next(next_of[match[0]])
            is_same = raw != match[0] or before == run[position : position + 1].casefold()
            yield raw if is_same else piece.write(match[0])
        yield piece.write(run[position:])

    return ["".join(spell(run)) for run in runs]


def spellings(piece: Piece) -> dict[str, list[tuple[str, str]]]:
    """Return the spellings of all characters that the piece spells in a special way, or that `write` would change.

    Returns:
        Character -> each occurrence's spelling and following character ("" before markup), in order.
    """
    special = {token.text for token in piece.tokens if isinstance(token, Text) and token.raw != token.text}
    special |= {character for character in set(piece.text) if piece.write(character) != character}
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for token, other in zip(piece.tokens, [*piece.tokens[1:], None], strict=True) if special else ():
        following = other.text[:1] if isinstance(other, Text) else ""
        for character, after in pairwise([*token.text, following] if isinstance(token, Text) else []):
            if character in special:
                found[character].append((token.raw if len(token.text) == 1 else character, after.casefold()))
    return found
