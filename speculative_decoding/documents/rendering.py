"""Writes decoded pieces as the document writes them: with its markup, its line breaks and its spelling."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise, repeat
from typing import NamedTuple

from .decoding import DecodedPiece, DecodedText
from .layout import break_places
from .pieces import Piece, break_spans
from .tokens import Break, Literal, Text

LINE_START = re.compile(r"[\n\r][ \t>]*\Z")  # perhaps in a quote


class Insertion(NamedTuple):
    """A token that is written into an output.

    start, end: The range of the output that it replaces.
    order: The token's index in the piece, or -1.
    side: -1 if it ends markup, 1 if it begins markup, otherwise 0.
    nesting: Sorts tokens of one side so that markup nests.
    raw: What is written.
    """

    start: int
    end: int
    order: int
    side: int
    nesting: tuple[int, ...]
    raw: str


class Renderer:
    """Writes the parts of a document in order.

    An output with too few words for the breaks of its piece leaves them to the next piece of the block, and at the end
    of the block those that are required.
    """

    def __init__(self) -> None:
        self._breaks: list[Break] = []  # left by earlier pieces of the block
        self._starts_line = True  # whether what follows does
        self._column = 0  # characters of the block's line so far
        self._source_column = 0  # the same in the source
        self._widest = 0  # characters of the widest line of the source that a break ends

    def add(self, part: Literal | Piece, decoded: DecodedPiece | None = None) -> str:
        """Return what to write for a part. decoded: its output, for a piece."""
        if isinstance(part, Literal):
            return self._literal(part)
        assert decoded is not None
        inner = iter(part.divide(decoded.spans))
        outputs = iter(decoded.outputs)
        written = "".join(
            self._literal(each) if isinstance(each, Literal) else self._text(each, next(outputs)) for each in inner
        )
        return written + (self._leftover() if part.ends_block else "")

    def _literal(self, literal: Literal) -> str:
        self._pass(literal)
        if not self._breaks:
            return literal.raw
        if "\n" in literal.raw or "\r" in literal.raw:
            return self._leftover() + literal.raw
        if literal.ends_block:
            return literal.raw + self._leftover()
        if not literal.raw.isspace():
            return literal.raw
        self._column, self._starts_line = 0, True
        return self._breaks.pop(0).raw

    def _pass(self, literal: Literal) -> None:
        """Note how wide the lines are with a literal."""
        ends_line = "\n" in literal.raw or "\r" in literal.raw
        self._starts_line = literal.ends_block or LINE_START.search(literal.raw) is not None
        if ends_line and not literal.ends_block:
            self._widest = max(self._widest, self._source_column)
        if ends_line or literal.ends_block:
            self._column = self._source_column = 0
        else:
            self._column += len(literal.raw)
            self._source_column += len(literal.raw)

    def _leftover(self) -> str:
        """End the line, and write the required breaks that found no place."""
        self._column = self._source_column = 0
        breaks, self._breaks = self._breaks, []
        return "".join(each.raw for each in breaks if each.is_required)

    def _text(self, piece: Piece, output: DecodedText) -> str:
        """Write the output for a piece."""
        starts_line, self._starts_line = self._starts_line, False
        first, *others = line_widths(piece)
        self._widest = max(self._widest, *([self._source_column + first, *others[:-1]] if others else []), 0)
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
    """Return the output with word joiners where no line may break: within markup that is in one line of the source."""
    breaks = [start for start, _ in break_spans(piece.tokens)]
    letters = [*output.text]
    for mark, place in zip(piece.marks, output.places, strict=True):
        if place and place[0] < place[1] and bisect_left(breaks, mark.start) == bisect_left(breaks, mark.end):
            letters[place[0] + 1 : place[1]] = "\u2060" * (place[1] - place[0] - 1)
    return "".join(letters)


def line_widths(piece: Piece) -> list[int]:
    """Return the lengths of the lines of a piece."""
    borders = [0, *(border for span in break_spans(piece.tokens) for border in span), len(piece.text)]
    return [end - start for start, end in zip(borders[::2], borders[1::2], strict=True)]


def written(piece: Piece, text: str, insertions: Sequence[Insertion], starts_line: bool) -> str:
    """Write an output with its markup and line breaks. Of the text that an insertion replaces, nothing is written."""
    starts = [starts_line, *(each.order < 0 or isinstance(piece.tokens[each.order], Break) for each in insertions)]
    runs, position = [], 0
    for each in insertions:
        runs.append(text[position : each.start])
        position = max(position, each.end)
    runs = spelled([*runs, text[position:]], piece)
    runs = [piece.write_start(run) if is_first else run for is_first, run in zip(starts, runs, strict=True)]
    return runs[0] + "".join(each.raw + run for each, run in zip(insertions, runs[1:], strict=True))


def spelled(runs: Sequence[str], piece: Piece) -> list[str]:
    """Write texts as the document writes them.

    Characters that the piece writes in a special way, such as "&" or "&amp;", are written in the same way again, one
    after the other if there are as many of them. A bare "&" is written again only then, and only before the same
    character, because elsewhere it might be markup.
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
    """Return how the piece writes characters that it writes specially, or that `write` would change.

    Returns:
        For each character, in order: how it is written, and the character that follows it, unless markup does.
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


def markup_of(piece: Piece, output: DecodedText) -> Iterator[Insertion]:
    """Yield the tokens of the piece's markup, with their places."""
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
    """Sort insertions. At the same place they have the order of the source, unless that would cross markup."""
    found: list[Insertion] = []
    by_place = sorted(insertions, key=lambda each: (each.start, each.start < each.end, each.order))
    for _, group in groupby(by_place, lambda each: each.start):
        together = [*group]
        sides = [each.side for each in together if each.side]
        if sides != sorted(sides):  # one ends behind the beginning of another
            together.sort(key=lambda each: (each.side, each.nesting, each.order))
        found += together
    return found
