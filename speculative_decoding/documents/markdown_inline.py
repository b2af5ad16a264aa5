"""Converts the text of a Markdown block to tokens. markdown-it-py finds inline markup; this module locates it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, replace
from html import unescape
from itertools import pairwise
from typing import Any, NamedTuple

from markdown_it.common.html_blocks import block_names
from markdown_it.token import Token as Event

from ..errors import InputError, Message
from .findings import COPIED, SHOWN, Finding
from .html import Reader
from .layout import line_break_text
from .markdown_inline_rules import inline_parser
from .markdown_templates import WORDS, is_component
from .markdown_writing import attribute_writer, writers_of
from .splitting import needs_decoding
from .tokens import Block, Break, Close, Kept, Literal, Open, Point, Text, Token, line_ends

Span = tuple[int, int]  # of the document: (start, end)

MAX_MARKS = 1 << 17  # characters in a block that could be markup; markdown-it-py needs up to 1 kB for each
MARKS = "\n!#&*+<=[\\]^_`{~"
TAG = re.compile(r"</?([A-Za-z][\w.-]*)")
VOID = frozenset(["area", "embed", "img", "input", "wbr"])  # without an end tag
BETWEEN_BLOCKS = frozenset([*block_names, "script", "pre", "style", "textarea", "br"])
CODE = frozenset(["code", "kbd", "samp", "tt", "var"])
UNTRANSLATED = re.compile(r"""\stranslate\s*=\s*["']?no\b""", re.IGNORECASE)
# The title at the end of a link or an image
TITLE = re.compile(r"""\][(\[].*?[\s>](?:"(?P<a>[^"\n]+)"|'(?P<b>[^'\n]+)'|\((?P<c>[^()\n]+)\))\s*\)""", re.DOTALL)
MARKDOWN = re.compile(r"```|~~~|\]\(|\]\[|\]:|\*\*|\{:|^\s*(?:[-*+]|\d+\.)\s")  # in HTML: some programs read it
REFERENCE = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});|\\[!-/:-@\[-`{-~]")
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
        """Return the content of a block that is no cell, given the spans of its lines."""
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
        yield plain_block(content.content, content.line, content.text[content.start - 1])
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
            yield part
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


def separated(parts: Sequence[Literal | Token], line: int) -> Iterator[Literal | Token | Block]:
    """Yield parts with the descriptions of images, and the titles of images and links, as blocks of their own.

    An image is no part of a sentence if its line, or the block before it or after it, has no other words. Titles are
    decoded in such images, and in links without other words in their block. Other titles are copied, with a finding.
    """
    closings = {part.number: index for index, part in enumerate(parts) if isinstance(part, Close)}
    spans = [
        (index, closings[part.number], part.raw == "![")
        for index, part in enumerate(parts)
        if isinstance(part, Open) and part.number in closings and part.raw in ("![", "[")
    ]
    described = {index for start, end, is_image in spans if is_image for index in range(start, end)}
    before = words_before(parts, described)
    after = words_before(parts[::-1], {len(parts) - 1 - index for index in described})[::-1]
    changed: dict[int, list[Literal | Token | Block]] = {}
    merged = 0  # the end of the last image without words
    for start, end, is_image in spans:
        if start < merged:
            continue
        whole = parts[start : end + 1]
        text = "".join(part.text for part in whole if not isinstance(part, Literal))
        raw = parts[end].raw
        titles = [span for span in title_spans(raw) if needs_decoding(raw[slice(*span)])]
        is_separate = not (before[start].in_block and after[end].in_block)
        if is_image:
            is_separate |= not (before[start].in_line or after[end].in_line)
        else:
            is_separate = bool(titles) and not (before[start].in_block or after[end].in_block)
        if is_separate and (titles or needs_decoding(text)):
            changed[start] = [Literal(parts[start].raw)]
            changed[end] = [*closing_parts(raw, titles, line)]
            continue
        for first, last in titles:
            yield Literal("", finding=Finding(line, COPIED, raw[first:last][:SHOWN]))
        if is_image and not needs_decoding(text):
            merged = end + 1
            changed |= {index: [] for index in range(start, merged)}
            changed[start] = [Point("".join(part.raw for part in whole))]
    for index, part in enumerate(parts):
        yield from changed.get(index, [part])


def title_spans(raw: str) -> list[Span]:
    """Return the spans of the title, and of attributes with words, in the end of a link or an image."""
    title = TITLE.match(raw)
    found = [title.span(title.lastgroup or 0)] if title else []
    return found + [words.span("words") for words in WORDS.finditer(raw, title.end() if title else 0)]


def closing_parts(raw: str, titles: Iterable[Span], line: int) -> Iterator[Literal | Block]:
    """Yield the end of a link or an image, with its titles as blocks."""
    position = 0
    for start, end in titles:
        yield Literal(raw[position:start])
        yield plain_block(raw[start:end], line, raw[start - 1])
        position = end
    yield Literal(raw[position:])


def plain_block(raw: str, line: int, quote: str) -> Block:
    """Return a block for text without markup between quotation marks or parentheses."""
    tokens: list[Token] = []
    position = 0
    for found in REFERENCE.finditer(raw):
        before, reference = raw[position : found.start()], found[0]
        tokens += [Text(before, before)] if before else []
        tokens.append(Text(unescape(reference) if reference[0] == "&" else reference[1:], reference))
        position = found.end()
    rest = raw[position:]
    tokens += [Text(rest, rest)] if rest else []
    return Block(tokens, line, attribute_writer(quote))


class Words(NamedTuple):
    """Whether there are words before a part: in its line, and in its block."""

    in_line: bool = False
    in_block: bool = False


def words_before(parts: Iterable[Literal | Token], described: Collection[int]) -> list[Words]:
    """Return the words before each part. described: the indices of parts that do not count."""
    found: list[Words] = []
    words = Words()
    for index, part in enumerate(parts):
        found.append(words)
        if isinstance(part, Literal):
            words = Words()
        elif isinstance(part, Break):
            words = Words(False, words.in_block)
        elif index not in described and any(map(str.isalnum, part.text)):
            words = Words(True, True)
    return found


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
