"""Converts the text of a Markdown block to tokens. markdown-it-py finds inline markup; this module locates it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markdown_it import MarkdownIt
from markdown_it import rules_inline as rules
from markdown_it.common.html_blocks import block_names
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token as Event

from ..errors import InputError, Message
from .code_patterns import CODE_PATTERNS
from .layout import line_break_text
from .markdown_writing import writers_of
from .tokens import Block, Break, Close, Kept, Literal, Open, Point, Text, Token, line_ends

Span = tuple[int, int]  # of the document: (start, end)

MAX_MARKS = 1 << 17  # characters in a block that could be markup; markdown-it-py needs up to 1 kB for each
MARKS = "\n!&*<[\\]_`~"
# At the start of a block: a task's checkbox, a footnote's label, or a GitHub alert. At the start of a line: the marker
# of a definition or an abbreviation ("*[HTML]: "), or the first or last line of a container (":::: note")
CONTAINER = r"(?:(?::{3}[^\n]*(?:\n|$))+|:[ \t]+|\*\[[^\[\]\n]{1,60}\]:[ \t]+|\[\^[^\]\s]{1,100}\]:[ \t]*)"
MARKER = re.compile(rf"\n{CONTAINER}")
FIRST_MARKER = re.compile(rf"\[[^\[\]^]\][ \t]+|\[![A-Za-z]+\][ \t]*(?:\n|$)|{CONTAINER}")
FORMULA = CODE_PATTERNS["formula"][1]
FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,100}\]")
TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9-]*)")
VOID = frozenset(["area", "embed", "img", "input", "wbr"])  # without an end tag
BETWEEN_BLOCKS = frozenset([*block_names, "script", "pre", "style", "textarea", "br"])
CODE = frozenset(["code", "kbd", "samp", "tt", "var"])
ENDING = {"newline": rules.newline, "escape": rules.escape, "backticks": rules.backtick, "link": rules.link}
WHOLE = {"image": rules.image, "autolink": rules.autolink, "html_inline": rules.html_inline}
UNTRANSLATED = re.compile(r"""\stranslate\s*=\s*["']?no\b""", re.IGNORECASE)


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
        in_cell: Whether the block is a table cell.
    """

    text: str
    content: str
    starts: Sequence[int]
    positions: Sequence[int]
    end: int
    line: int
    in_cell: bool = False

    @classmethod
    def of_lines(cls, text: str, spans: Sequence[Span], line: int) -> Content:
        """Return the content of a paragraph or heading, given the spans of its lines."""
        starts, lines, size = [], [], 0
        for start, end in spans:
            starts.append(size)
            lines.append(text[start:end].removesuffix("\r"))
            size += len(lines[-1]) + 1
        return cls(text, "\n".join(lines), starts, [start for start, _ in spans], spans[-1][1], line)

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
        return cls(text, "|".join(parts), starts, positions, end, line, in_cell=True)

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


def inline_parser() -> MarkdownIt:
    """Return a parser for inline markup. Events have meta["end"] unless their markup determines where they end."""
    parser = MarkdownIt("commonmark").enable("strikethrough")
    for name, rule in ENDING.items():
        parser.inline.ruler.at(name, with_end(rule))
    for name, rule in WHOLE.items():
        parser.inline.ruler.at(name, as_one(rule, name))
    parser.inline.ruler.before("newline", "marker", as_one(marker, "marker"))
    parser.inline.ruler.before("escape", "formula", as_one(formula, "formula"))
    parser.inline.ruler.before("link", "footnote", as_one(footnote, "footnote"))
    parser.inline.ruler.before("html_inline", "comment", as_one(comment, "html_inline"))
    return parser


def with_end(rule: Any) -> Any:
    """Wrap a rule so that it records where its last event ends."""

    def recording(state: StateInline, silent: bool) -> bool:
        count = len(state.tokens)
        found = bool(rule(state, silent))
        if found and len(state.tokens) > count:
            state.tokens[-1].meta["end"] = state.pos
        return found

    return recording


def as_one(rule: Any, name: str) -> Any:
    """Return a rule that emits one event without content for each match of another rule."""

    def emitting(state: StateInline, silent: bool) -> bool:
        if not rule(state, True):
            return False
        if not silent:
            state.push(name, "", 0).meta["end"] = state.pos
        return True

    return emitting


def marker(state: StateInline, silent: bool) -> bool:
    pattern = FIRST_MARKER if state.pos == 0 else MARKER
    if state.src[state.pos] not in "[:*\n" or state.level or not (found := pattern.match(state.src, state.pos)):
        return False
    state.pos = found.end()
    return True


def formula(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "$\\" or not (found := FORMULA.match(state.src, state.pos, state.posMax)):
        return False
    state.pos = found.end()
    return True


def footnote(state: StateInline, silent: bool) -> bool:
    if not (found := FOOTNOTE.match(state.src, state.pos, state.posMax)):
        return False
    state.pos = found.end()
    return True


def comment(state: StateInline, silent: bool) -> bool:
    """Match a comment as in CommonMark 0.31. markdown-it-py's pattern takes quadratic time for "<!--<!--...--->"."""
    if not state.src.startswith("<!--", state.pos) or state.html_terminator_last("-->") < state.pos + 4:
        return False
    state.pos = state.src.index("-->", state.pos + 4) + 3
    return True


PARSER = inline_parser()


def inline_parts(content: Content, env: MutableMapping[str, Any]) -> Iterator[Literal | Block]:
    """Yield the blocks in the content, and the literals between them, such as hard line breaks.

    env: The link reference definitions of the document, as markdown-it-py stores them.
    """
    if sum(content.content.count(mark) for mark in MARKS) > MAX_MARKS:
        problem = f"line {content.line}: a paragraph has more than {MAX_MARKS:,} characters of markup"
        raise InputError(problem, way_out=Message("divide it, or set {format} to text"))
    parts = single_spaced(Inline(content, env).without_kept())
    line = content.line
    tokens: list[Token] = []
    for part in [*parts, None]:
        if part is not None and not isinstance(part, Literal):
            tokens.append(part)
            continue
        if tokens:
            yield Block(tokens, line, *writers_of(tokens, content.in_cell))
            line += sum(line_ends(token.raw) for token in tokens)
            tokens = []
        if part is not None:
            yield part
            line += line_ends(part.raw)


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
            case "formula":
                self.parts.append(Kept(raw, raw))
            case "autolink":
                self.parts.append(Kept(raw[1:-1], raw))
            case "image" | "footnote":
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
                self._open(raw, "", is_link=raw == "[")
            case _:
                self._drop_unclosed()
                self._close(raw, is_kept=raw in ("]", "][]"))  # the link's text identifies its target

    def _add_html(self, raw: str) -> None:
        """Add an HTML tag, comment or similar construct. A construct that may begin an HTML block ends the sentence."""
        found = TAG.match(raw)
        name = found[1].lower() if found else ""
        if not name or name in BETWEEN_BLOCKS:
            self.parts.append(Literal(raw))
        elif raw[1] != "/" and not raw.endswith("/>") and name not in VOID:
            self._open(raw, name, is_link=name == "a")
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


def single_spaced(parts: Iterable[Literal | Token]) -> list[Literal | Token]:
    """Turn white space that follows other white space into points, as around an image or at the end of a line."""
    found: list[Literal | Token] = []
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
        if part.raw:
            found.append(part)
        if isinstance(part, Literal | Break):
            starts_line = after_space = True
        elif part.text:
            starts_line, after_space = False, part.text[-1].isspace()
    return found


def end_without_space(parts: list[Literal | Token]) -> None:
    """Turn white space at the end of the text into a point."""
    index = len(parts) - 1
    while index >= 0 and not isinstance(last := parts[index], Literal) and not last.text:
        index -= 1
    if index >= 0 and isinstance(last, Text) and last.raw == last.text and last.text[-1].isspace():
        rest = last.text.rstrip()
        parts[index : index + 1] = [*([Text(rest, rest)] if rest else []), Point(last.text[len(rest) :])]
