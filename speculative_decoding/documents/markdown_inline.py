"""Converts the text of a Markdown block to tokens. markdown-it-py finds inline markup; this module locates it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from markdown_it.common.html_blocks import block_names
from markdown_it.token import Token as Event

from ..errors import InputError, Message
from .html import Reader
from .layout import line_break_text
from .markdown_inline_rules import inline_parser
from .markdown_templates import is_component
from .markdown_titles import plain_block, separated
from .markdown_writing import writers_of
from .splitting import Span
from .tokens import Block, Break, Close, Kept, Literal, Open, Point, Text, Token, line_ends

MAX_MARKS = 1 << 17  # characters in a block that could be markup; markdown-it-py needs up to 1 kB for each
MARKS = "\n!#&*+<=[\\]^_`{~"
TAG = re.compile(r"</?([A-Za-z][\w.-]*)")
VOID = frozenset(["area", "embed", "img", "input", "wbr"])  # without an end tag
BETWEEN_BLOCKS = frozenset([*block_names, "script", "pre", "style", "textarea", "br"])
CODE = frozenset(["code", "kbd", "samp", "tt", "var"])
UNTRANSLATED = re.compile(r"""\stranslate\s*=\s*["']?no\b""", re.IGNORECASE)
MARKDOWN = re.compile(r"```|~~~|\]\(|\]\[|\]:|\*\*|\{:|^\s*(?:[-*+]|\d+\.)\s")  # in HTML: some programs read it
LINES, CELL, PLAIN, HTML = range(4)  # types of content


@dataclass(frozen=True)
class Content:
    """The text of a block, without the list, quote and table markup around it.

    Args:
        text: The document.
        content: The text of the block, as markdown-it-py parses it.
        starts: The offset of each segment of the content. A segment is contiguous in the document.
        positions: The position of each segment in the document.
        end: The end of the content in the document.
        line: The number of the block's first line, from 1.
        type: How the content is parsed: as a paragraph or heading, a table cell, plain text, or HTML.
    """

    text: str
    content: str
    starts: Sequence[int]
    positions: Sequence[int]
    end: int
    line: int
    type: int = LINES

    @classmethod
    def of_lines(cls, text: str, spans: Sequence[Span], line: int, type: int = LINES) -> Content:
        """Return the content of any block except a table cell, given the spans of its lines."""
        starts, lines, size = [], [], 0
        for start, end in spans:
            starts.append(size)
            lines.append(text[start:end].removesuffix("\r"))
            size += len(lines[-1]) + 1
        return cls(text, "\n".join(lines), starts, [start for start, _ in spans], spans[-1][1], line, type)

    @classmethod
    def of_cell(cls, text: str, span: Span, line: int) -> Content:
        r"""Return the content of a table cell, in which "\|" stands for "|", even in code."""
        start, end = span
        parts = text[start:end].split("\\|")
        starts, positions, size = [0], [start], len(parts[0])
        for part in parts[1:]:
            position = positions[-1] + size - starts[-1]
            starts += [size, size + 1]
            positions += [position, position + 2]
            size += len(part) + 1
        return cls(text, "|".join(parts), starts, positions, end, line, CELL)

    @property
    def start(self) -> int:
        return self.positions[0]

    def position(self, offset: int) -> int:
        """Return the position in the document that corresponds to an offset in the content."""
        if offset == len(self.content):
            return self.end
        segment = bisect_right(self.starts, offset) - 1
        return self.positions[segment] + offset - self.starts[segment]

    def raw(self, start: int, end: int) -> str:
        """Return the part of the document that corresponds to a range of the content."""
        return self.text[self.position(start) : self.position(end)]

    def segments(self, start: int, end: int) -> Iterator[Span]:
        """Divide a range of the content at the segment boundaries."""
        first, last = bisect_right(self.starts, start), bisect_right(self.starts, end - 1)
        return pairwise([start, *self.starts[first:last], end])


PARSER = inline_parser()


def inline_parts(content: Content, env: MutableMapping[str, Any]) -> Iterator[Literal | Block]:
    """Yield the blocks in the content, and the literals between them, such as hard line breaks.

    env: The link reference definitions of the document, as markdown-it-py stores them.
    """
    if content.type == PLAIN:
        yield replace(plain_block(content.content, content.text[content.start - 1]), line=content.line)
        return
    if content.type == HTML:
        yield from html_parts(content)
        return
    if sum(content.content.count(mark) for mark in MARKS) > MAX_MARKS:
        problem = f"line {content.line}: a paragraph has more than {MAX_MARKS:,} characters of markup"
        raise InputError(problem, way_out=Message("divide it, or set {format} to text"))
    parts = single_spaced(separated([*Inline(content, env).without_kept()], content.line))
    line = content.line
    tokens: list[Token] = []
    for part in [*parts, None]:
        if part is not None and not isinstance(part, Literal | Block):
            tokens.append(part)
            continue
        if tokens:
            yield Block(tokens, line, *writers_of(tokens, content.type == CELL))
            line += sum(line_ends(token.raw) for token in tokens)
            tokens = []
        if part is not None:
            yield replace(part, line=line) if isinstance(part, Block) else part
            line += line_ends(part.raw)


def html_parts(content: Content) -> Iterator[Literal | Block]:
    """Yield the parts of an HTML block. Markdown within it, and a block with attributes in braces, is copied."""
    raw = content.text[content.start : content.end]
    for part in [Literal(raw)] if "={" in raw else Reader(raw).parts():
        if isinstance(part, Literal) or MARKDOWN.search(part.raw):
            yield Literal(part.raw)
        else:
            yield replace(part, line=content.line + part.line - 1)


class Inline:
    """Converts the events that markdown-it-py emits for a block's content to tokens, and literals between them."""

    def __init__(self, content: Content, env: MutableMapping[str, Any]) -> None:
        self.parts: list[Literal | Token] = []
        self._content = content
        self._opened: list[tuple[int, str]] = []  # index in `parts`, and the element's name if it is HTML
        self._kept: dict[int, int] = {}  # kept markup: index of its first part -> index of its last part
        position = 0
        source = content.content
        for event in PARSER.inline.parse(source.replace("\0", "\ufffd"), PARSER, env, []):
            end = event.meta.get("end") or position + (len(event.markup or event.content) or event.type == "link_open")
            if position < end:
                self._add(event, position, end)
            position = end
        assert position == len(source)
        self._drop_unclosed()

    def _add(self, event: Event, start: int, end: int) -> None:
        raw = self._content.raw(start, end)
        match event.type:
            case "text":
                ranges = self._content.segments(start, end)
                self.parts += [Text(self._content.content[i:j], self._content.raw(i, j)) for i, j in ranges]
            case "text_special":
                self.parts.append(Point(raw) if event.content in "\t\n\r" else Text(event.content, raw))
            case "code_inline":
                self.parts.append(kept(event.content, raw))
            case "formula" | "template":
                self.parts.append(Kept(raw, raw))
            case "attributes":
                self._add_attributes(raw)
            case "autolink":
                self.parts.append(Kept(raw[1:-1], raw))
            case "footnote" | "note":
                self.parts.append(Point(raw))
            case "softbreak":
                text = line_break_text(
                    self._content.content[max(start - 1, 0) : start], self._content.content[end : end + 1]
                )
                self.parts.append(Break(raw, text, is_required=False))  # an empty line would end the paragraph
            case "hardbreak" | "marker":
                self.parts.append(Literal(raw))
            case "html_inline":
                self._add_html(raw)
            case _ if event.nesting > 0:
                self._open(raw, "", is_link=raw[0] in "[!{")
            case _:
                self._drop_unclosed()
                self._close(raw, is_kept=raw in ("]", "][]"))  # the link's text identifies its target

    def _add_attributes(self, raw: str) -> None:
        """Add a list of attributes, which belongs to the markup before it."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, Close | Kept | Point):
            self.parts[-1] = replace(last, raw=last.raw + raw)
        else:
            self.parts.append(Point(raw))

    def _add_html(self, raw: str) -> None:
        """Add a tag, comment or similar construct. A construct that may begin an HTML block ends the sentence."""
        found = TAG.match(raw)
        name = found[1] if found else ""
        is_program = name != "" and is_component(name)
        name = name if is_program else name.lower()
        if not name or name in BETWEEN_BLOCKS:
            self.parts.append(Literal(raw))
        elif raw[1] != "/" and not raw.endswith("/>") and name not in VOID:
            self._open(raw, name, is_link=is_program or name == "a")
        elif raw[1] == "/" and self._opened and self._opened[-1][1] == name:
            opening = self.parts[self._opened[-1][0]].raw
            self._close(raw, is_kept=name in CODE or UNTRANSLATED.search(opening) is not None)
        else:
            self.parts.append(Point(raw))

    def _open(self, raw: str, name: str, *, is_link: bool) -> None:
        self._opened.append((len(self.parts), name))
        self.parts.append(Open(raw, len(self.parts), is_link))

    def _close(self, raw: str, *, is_kept: bool) -> None:
        index, _ = self._opened.pop()
        if is_kept:
            self._kept[index] = len(self.parts)
        self.parts.append(Close(raw, index))

    def _drop_unclosed(self) -> None:
        """Within the markup that ends here, turn HTML tags without an end tag into points."""
        while self._opened and self._opened[-1][1]:
            index, _ = self._opened.pop()
            self.parts[index] = Point(self.parts[index].raw)

    def without_kept(self) -> Iterator[Literal | Token]:
        """Yield the parts, replacing each range of kept markup with a single token."""
        index = 0
        while index < len(self.parts):
            end = self._kept.get(index, index) + 1
            inner = self.parts[index:end]
            text = "".join(part.text for part in inner if not isinstance(part, Literal))
            yield kept(text, "".join(part.raw for part in inner)) if index in self._kept else inner[0]
            index = end


def kept(text: str, raw: str) -> Kept | Point:
    return Kept(text, raw) if text.strip() else Point(raw)


def single_spaced(parts: Iterable[Literal | Token | Block]) -> list[Literal | Token | Block]:
    """Turn white space that follows other white space into points, as around an image or at the end of a line."""
    found: list[Literal | Token | Block] = []
    starts_line = after_space = True
    for part in parts:
        if isinstance(part, Break) and starts_line:
            part = Point(part.raw)
        elif isinstance(part, Break):
            end_without_space(found)
        elif isinstance(part, Text) and part.raw == part.text and after_space:
            rest = part.text.lstrip()
            found += [Point(each) for each in [part.text[: len(part.text) - len(rest)]] if each]
            part = Text(rest, rest)
        if part.raw or (isinstance(part, Literal) and part.finding):
            found.append(part)
        if isinstance(part, Literal | Block | Break):
            starts_line = after_space = True
        elif part.text:
            starts_line, after_space = False, part.text[-1].isspace()
    return found


def end_without_space(parts: list[Literal | Token | Block]) -> None:
    """Turn white space at the end of the text into a point."""
    index = len(parts) - 1
    while index >= 0 and not isinstance(last := parts[index], Literal | Block) and not last.text:
        index -= 1
    if index >= 0 and isinstance(last, Text) and last.raw == last.text and last.text[-1].isspace():
        rest = last.text.rstrip()
        parts[index : index + 1] = [*([Text(rest, rest)] if rest else []), Point(last.text[len(rest) :])]
