"""Divides blocks into pieces, each of which becomes one prompt, and the literals between the pieces."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from .findings import COPIED, SHOWN, Finding
from .formats import FORMATS
from .messages import APOSTROPHE, ARGUMENT, QUOTED, SYNTAX, message_parts, unquoted, write_message
from .messages import TEXT as MESSAGE_TEXT
from .messages import Part as MessagePart
from .options import DocumentOptions
from .splitting import (
    Span,
    around_opaque,
    is_language,
    line_spans,
    needs_decoding,
    sentence_spans,
    short_spans,
    without_symbols,
)
from .tokens import Block, Break, Close, Kept, Literal, Open, Point, Text, Token, Write, line_ends

LETTER = re.compile(r"[^\W\d_]")
JOINED = 1 << 14  # number of characters after which joined literals are yielded


@dataclass(frozen=True)
class Mark:
    """An element of a piece that needs a place in the output: inline markup, a `Point`, or a `Kept` text.

    Args:
        start, end: The enclosed range of the piece's text, which is empty for a `Point`.
        opening, closing: The indices of its `Open` and `Close` in the piece's tokens; None for a token that is not in
            the piece. A `Point` or `Kept` has only `opening`.
        is_kept: Whether it is a `Kept` token.
        is_link: See `Open`.
    """

    start: int
    end: int
    opening: int | None = None
    closing: int | None = None
    is_kept: bool = False
    is_link: bool = False


@dataclass(frozen=True)
class Piece:
    """A sentence or another part of a block, decoded as one prompt.

    Args:
        tokens: The tokens of its content. Their markup may begin or end in other pieces.
        line: The number of the document's line on which it begins, from 1.
        write, write_start, write_whole: See `Block`.
        ends_block: Whether it is the last piece of its block.
    """

    tokens: Sequence[Token]
    line: int
    write: Write = str
    write_start: Write = str
    write_whole: Write = str
    ends_block: bool = False

    @cached_property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @cached_property
    def raw(self) -> str:
        return "".join(token.raw for token in self.tokens)

    @cached_property
    def marks(self) -> list[Mark]:
        """All inline markup, points and kept text, in the order of their first tokens."""
        opened: dict[int, int] = {}  # the markup's number -> its index in `found`
        found: list[Mark] = []
        position = 0
        for index, token in enumerate(self.tokens):
            if isinstance(token, Open):
                opened[token.number] = len(found)
                found.append(Mark(position, len(self.text), index, None, is_link=token.is_link))
            elif isinstance(token, Close) and token.number in opened:
                number = opened.pop(token.number)
                found[number] = replace(found[number], end=position, closing=index)
            elif isinstance(token, Close):
                found.append(Mark(0, position, None, index))
            elif isinstance(token, Point):
                found.append(Mark(position, position, index))
            elif isinstance(token, Kept):
                found.append(Mark(position, position + len(token.text), index, is_kept=True))
            position += len(token.text)
        return found


def parts_of(
    lines: Iterable[str],
    options: DocumentOptions,
    language: str,
    target: str | None = None,
    has_match: Callable[[Piece], bool] | None = None,
) -> Iterator[Literal | Piece]:
    """Yield the parts of a document: pieces to decode, and literals to copy. Consecutive literals are joined.

    Args:
        lines: The lines of the document, each with its line end.
        options: How to read it.
        language: The ISO code of its language.
        target: The BCP 47 tag of the output's language, which some bilingual formats require. None if unknown.
        has_match: Returns whether a piece is not decoded. A block that is such a piece is not divided.
    """
    copied: list[str] = []
    size = 0
    for part in FORMATS[options.format or "text"].parse(lines, options, target):
        is_copied = part.finding is None if isinstance(part, Literal) else not LETTER.search(part.text)
        if is_copied:
            copied.append(part.raw)
            size += len(part.raw)
        if copied and (size > JOINED or not is_copied):
            yield Literal("".join(copied))
            copied, size = [], 0
        if not is_copied:
            yield from [part] if isinstance(part, Literal) else pieces_of(part, options.unit, language, has_match)
    if copied:
        yield Literal("".join(copied))


def check_format(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> None:
    """Parse a whole document. Raises `InputError` if it is damaged. For the arguments, see `parts_of`."""
    format = FORMATS[options.format or "text"]
    if format.has_errors:
        deque(format.parse(lines, options, target), maxlen=0)


def pieces_of(
    block: Block, unit: str, language: str, has_match: Callable[[Piece], bool] | None = None
) -> Iterator[Literal | Piece]:
    """Divide a block into sentences or lines, or make it a single piece. Code, formulas and numbers become literals.

    Each text in an ICU message is divided separately, and the message's syntax is copied. has_match: see `parts_of`.
    """
    if has_match is not None and unit != "paragraph":
        whole = [*pieces_of(block, "paragraph", language)]
        pieces = [part for part in whole if isinstance(part, Piece)]
        if pieces and all(map(has_match, pieces)):
            yield from whole
            return
    areas = [(0, len(block.text))]
    if parts := message_parts(block.text):
        block, areas = texts_of_message(block, parts)
    text = block.text
    units = (span for area in areas for span in unit_spans(block, area, unit, language))
    short = (part for span in around_opaque(text_without_kept(block.tokens), units) for part in short_spans(text, span))
    last: Literal | Piece | None = None
    for each in divide(block, [without_symbols(text, span) for span in short]):
        if last is not None:
            yield last
        last = copied_unless_language(each)
        if block.write_whole is not str:
            last = replace(last, write_whole=block.write_whole)
    if last is not None:
        yield replace(last, ends_block=True)


def unit_spans(block: Block, area: Span, unit: str, language: str) -> Iterator[Span]:
    """Yield the sentences or lines within a range of the block's text, or the whole range."""
    first, last = area
    text = block.text[first:last]
    if unit == "sentence":
        spans = sentence_spans(text, language)
    else:
        breaks = break_spans(block.tokens) if unit == "line" else []
        spans = line_spans(
            text, [(start - first, end - first) for start, end in breaks if first <= start <= end <= last]
        )
    return ((first + start, first + end) for start, end in spans)


def texts_of_message(block: Block, parts: Sequence[MessagePart]) -> tuple[Block, list[Span]]:
    """Return a block with an ICU message's text as it is displayed, and the spans to decode."""
    tokens: list[Token] = []
    texts: list[Span] = []
    position = 0
    segments = cut(block.tokens, [(part.start, part.end) for part in parts])
    for part, before, inside in zip(parts, segments[::2], segments[1::2], strict=False):
        own = [*before, *inside]
        text, raw = block.text[part.start : part.end], "".join(token.raw for token in own)
        if part.type == APOSTROPHE:
            own = [Text("'", raw)]
        elif part.type == QUOTED:
            own = [Kept(unquoted(text), raw)]
        elif part.type == ARGUMENT:
            own = [Kept(text, raw)]
        end = position + sum(len(token.text) for token in own)
        if part.type != SYNTAX:
            start = texts.pop()[0] if texts and texts[-1][1] == position else position
            texts.append((start, end))
        tokens += own
        position = end
    write = block.write
    return replace(block, tokens=[*tokens, *segments[-1]], write=lambda text: write(write_message(text))), texts


def copied_unless_language(part: Piece | Literal) -> Piece | Literal:
    """Turn a piece without words into a literal, and one that is not natural language into a literal with a finding."""
    if isinstance(part, Literal):
        return part
    text = text_without_kept(part.tokens, "")
    if not needs_decoding(text):
        return Literal(part.raw, ends_block=False)
    if not is_language(text):
        return Literal(part.raw, ends_block=False, finding=Finding(part.line, COPIED, part.text[:SHOWN]))
    return part


def has_words(tokens: Sequence[Token]) -> bool:
    """Return whether a block with these tokens has text to decode, which may be in the branches of an ICU message."""
    text = "".join(token.text for token in tokens)
    if parts := message_parts(text):
        return any(part.type == MESSAGE_TEXT and needs_decoding(text[part.start : part.end]) for part in parts)
    return needs_decoding(text_without_kept(tokens, ""))


def text_without_kept(tokens: Iterable[Token], instead: str = "\ufffc") -> str:
    """Return the text of tokens. `instead` replaces each character of a `Kept` token."""
    return "".join(instead * len(token.text) if isinstance(token, Kept) else token.text for token in tokens)


def break_spans(tokens: Iterable[Token]) -> list[Span]:
    """Return the spans of the line breaks in the text of the tokens."""
    found = []
    position = 0
    for token in tokens:
        if isinstance(token, Break):
            found.append((position, position + len(token.text)))
        position += len(token.text)
    return found


def around_tokens(piece: Piece, spans: Iterable[Span]) -> list[Span]:
    """Extend spans that end within an indivisible token, such as code, so that they include the whole token."""
    borders = [0, *accumulate(len(token.text) for token in piece.tokens)]
    found: list[Span] = []
    done = 0
    for start, end in spans:
        first, last = max(bisect_right(borders, start) - 1, 0), max(bisect_left(borders, end), 1) - 1
        if start > done and not is_plain(piece.tokens[first]):
            start = max(borders[first], done)
        if not is_plain(piece.tokens[last]):
            end = borders[last + 1]
        start = max(start, done)
        part = piece.text[start:end]
        if content := part.strip():
            start += len(part) - len(part.lstrip())
            found.append((start, start + len(content)))
            done = end
    return found


def divide(whole: Block | Piece, spans: Sequence[Span]) -> Iterator[Piece | Literal]:
    """Yield a piece for each span of the text, and a literal for each nonempty gap between spans.

    Markup that begins at the start of a span or ends at its end belongs to the piece, unless the markup encloses the
    whole piece.
    """
    line = whole.line
    for number, tokens in enumerate(with_own_markup(cut(whole.tokens, spans))):
        raw = "".join(token.raw for token in tokens)
        if number % 2:
            yield Piece(tokens, line, whole.write, whole.write_start)
        elif raw:
            yield Literal(raw, ends_block=False)
        line += line_ends(raw)


def cut(tokens: Iterable[Token], spans: Sequence[Span]) -> list[list[Token]]:
    """Divide tokens at the borders of spans. Returns the tokens of each gap and span in order, with gaps at both ends.

    A token without text is grouped with the text after it. Only tokens of plain text are divided.
    """
    borders = [border for span in spans for border in span]
    segments: list[list[Token]] = [[]]
    position = 0
    for token in tokens:
        start, size = 0, len(token.text)
        while True:
            while len(segments) <= len(borders) and position >= borders[len(segments) - 1]:
                segments.append([])
            border = borders[len(segments) - 1] if len(segments) <= len(borders) else position + size
            end = min(size, start + border - position) if is_plain(token) else size
            segments[-1].append(token if end - start == size else Text(token.text[start:end], token.text[start:end]))
            position += end - start
            start = end
            if start == size:
                break
    return [*segments, *([] for _ in range(len(segments), len(borders) + 1))]


def is_plain(token: Token) -> bool:
    return isinstance(token, Text) and token.text == token.raw


def with_own_markup(segments: list[list[Token]]) -> list[list[Token]]:
    """Move tokens without text from the ends of a span to the span to which they belong, or to the adjacent gap."""
    for number in range(1, len(segments), 2):  # `cut` puts markup between two adjacent spans into the second one
        inside = segments[number]
        size = next((count for count, token in enumerate(inside) if token.text), len(inside))
        segments[number - 1] += inside[:size]
        segments[number] = inside[size:]
    for number in range(1, len(segments), 2):
        before, inside, after = segments[number - 1 : number + 2]
        opening = leading(before[::-1], (Open,))
        closing = leading(after, (Close,))
        whole = [*before[len(before) - opening :], *inside, *after[:closing]]
        start, end = within_markup(whole)
        segments[number - 1] = [*before[: len(before) - opening], *whole[:start]]
        segments[number] = whole[start:end]
        segments[number + 1] = [*whole[end:], *after[closing:]]
    return segments


def leading(tokens: Sequence[Token], types: tuple[type, ...]) -> int:
    """Return the number of leading tokens that have one of these types."""
    return next((count for count, token in enumerate(tokens) if not isinstance(token, types)), len(tokens))


def within_markup(tokens: Sequence[Token]) -> Span:
    """Return the range of tokens without the outer markup that encloses all of them, or whose other end is missing."""
    closings = {token.number: index for index, token in enumerate(tokens) if isinstance(token, Close)}
    start, end = 0, len(tokens)
    while start < end and isinstance(first := tokens[start], Open):
        closing = closings.get(first.number)
        if closing == end - 1:
            end -= 1
        elif closing is not None:
            break
        start += 1
    opened = {token.number for token in tokens[start:end] if isinstance(token, Open)}
    while start < end and isinstance(last := tokens[end - 1], Close) and last.number not in opened:
        end -= 1
    return start, end
