"""Parses Markdown: CommonMark with tables, strikethrough, front matter, and the marks of many dialects.

The text of paragraphs, headings, table cells, titles and HTML blocks is decoded. markdown-it-py finds the blocks, and
this module locates each block's text in the document, after any list and quote markup. Everything else is copied: code,
templates, link reference definitions without titles, formulas, and the markup around the text of a block.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.token import Token as Event

from .findings import ANCHOR, Finding
from .markdown_blocks import HTML as HTML_TAG
from .markdown_blocks import TITLE, add_rules
from .markdown_inline import CELL, HTML, LINES, PLAIN, Content, inline_parts
from .markdown_templates import ATTRIBUTES
from .markdown_templates import PLAIN as PLAIN_TAG
from .options import DocumentOptions
from .splitting import Span, needs_decoding
from .tokens import Literal, Part, read_whole

MAX_DEPTH = 100  # nesting depth of lists and quotes; deeper lines are copied
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n(?![ \t]*\n)(?:.*\n)*?(?:\1|\.\.\.)[ \t]*(?:\n|\Z)")
ANCHOR_LINK = re.compile(r"(?:\]\(|\bhref=[\"']?)#([^\s()\"'<>]{1,200}+)")
REPEATED = re.compile(r"-\d+\Z")  # in the anchor of a heading whose text occurs several times
LINK_TARGET = re.compile(r"\]\([^\s()]{0,500}+\)|\]\[[^\[\]]{0,100}+\]")
CELL_END = re.compile(r"(?<!\\)\|")
TYPES = {TITLE: LINES, PLAIN_TAG: PLAIN, HTML_TAG: HTML}  # tag of the event after a text -> type of content


def parse(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> Iterator[Part]:
    """Yield the parts of a Markdown document, which is read as a whole."""
    text = read_whole(lines)
    outline = Outline(text)
    position = 0
    for content in outline.contents(text):
        if position < content.start:
            yield Literal(text[position : content.start])
        for anchor in ANCHOR_LINK.findall(content.content):
            if outline.slugs & {slug(unquote(anchor)), slug(REPEATED.sub("", anchor))}:
                yield Literal("", finding=Finding(content.line, ANCHOR, f"#{anchor}"))
        yield from inline_parts(content, outline.env)
        position = content.end
    if position < len(text):
        yield Literal(text[position:])


def too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A rule that copies deeply nested lines unparsed, because each level of nesting uses Python stack frames."""
    if state.level < MAX_DEPTH:
        return False
    state.line = start + 1
    return True


def block_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": MAX_DEPTH + 10}).enable("table")
    parser.block.ruler.before("table", "too_deep", too_deep)
    add_rules(parser)
    return parser


PARSER = block_parser()


class Outline(StateBlock):
    """The position of each block's text in a document.

    During parsing, markdown-it-py moves the start of each line after the markup of the enclosing lists and quotes. At
    the end of each block, `push` records these starts. The parser's tokens are not kept, so memory use grows only with
    the number of blocks.
    """

    def __init__(self, text: str) -> None:
        # Normalized as in markdown-it-py, but without changing offsets. Tabs at the ends of lines are insignificant
        source = text.replace("\r\n", "\t\n").replace("\r", "\n").replace("\0", "\ufffd")
        super().__init__(source, PARSER, {}, [])
        # For each block: line, content type, number of spans, and the start and end of each span
        self._recorded = array("q")
        self._row = -1
        self._cells: Iterator[Span] = iter(())
        self.slugs: set[str] = set()  # of the headings whose text determines their anchor
        front_matter = FRONT_MATTER.match(source)
        first = front_matter.group().count("\n") if front_matter else 0
        PARSER.block.tokenize(self, min(first, self.lineMax), self.lineMax)

    def contents(self, text: str) -> Iterator[Content]:
        """Yield the content of each block that has text, in order."""
        recorded = self._recorded
        index = 0
        while index < len(recorded):
            line, content_type, count = recorded[index : index + 3]
            index += 3
            borders = recorded[index : index + 2 * count]
            index += 2 * count
            spans = list(zip(borders[::2], borders[1::2], strict=True))
            is_cell = content_type == CELL
            yield (
                Content.of_cell(text, spans[0], line) if is_cell else Content.of_lines(text, spans, line, content_type)
            )

    def push(self, ttype: str, tag: str, nesting: int) -> Event:
        """Begin an event, and record the position of the previous event, which is now complete."""
        if self.tokens and self.tokens[-1].type == "inline" and self.tokens[-1].content:
            self._record(self.tokens[-1], tag)
        self.tokens.clear()
        return super().push(ttype, tag, nesting)  # type: ignore[arg-type]

    def _record(self, inline: Event, tag: str) -> None:
        assert inline.map is not None
        first, last = inline.map
        if tag in TYPES:
            start = inline.meta["start"]
            self._recorded.extend([first + 1, TYPES[tag], 1, start, start + len(inline.content)])
            return
        if tag in ("td", "th"):
            if (cell := self._cell(inline)) is not None:
                self._recorded.extend([first + 1, CELL, 1, *cell])
            return
        spans = [(self.bMarks[line] + self.tShift[line], self.eMarks[line]) for line in range(first, last)]
        if tag != "p" and last == self.line:  # a heading with "#" before its text, and possibly after it
            start = self.src.index(inline.content, spans[0][0] + int(tag[1]))
            spans = [(start, start + len(inline.content))]
        start, end = spans[-1]
        whole = self.src[start:end].rstrip()
        text = without_attributes(whole, tag)
        spans[-1] = start, start + len(text)
        if tag != "p" and "#" not in whole[len(text) :] and needs_decoding(text):
            self.slugs.add(slug(LINK_TARGET.sub("]", text)))
        self._recorded.extend([first + 1, LINES, len(spans), *(border for span in spans for border in span)])

    def _cell(self, inline: Event) -> Span | None:
        """Return the span of the next cell in the row that has this content."""
        assert inline.map is not None
        if self._row != inline.map[0]:
            self._row = inline.map[0]
            self._cells = self._cells_of(self._row)
        for start, end in self._cells:
            if self.src[start:end].replace("\\|", "|") == inline.content:
                return start, end
        return None

    def _cells_of(self, line: int) -> Iterator[Span]:
        """Yield the span of each cell's text, between the pipes of a line."""
        start, last = self.bMarks[line] + self.tShift[line], self.eMarks[line]
        for end in [*(match.start() for match in CELL_END.finditer(self.src, start, last)), last]:
            cell = self.src[start:end]
            left = start + len(cell) - len(cell.lstrip())
            yield left, max(left, start + len(cell.rstrip()))
            start = end + 1


def slug(heading: str) -> str:
    """Return a heading's anchor by GitHub's rule, with one hyphen for adjacent spaces, as in other programs."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.strip().lower()))


def without_attributes(text: str, tag: str) -> str:
    """Return the text of a heading without attributes such as "{#name .class}" at its end."""
    start = text.rfind("{")
    is_heading = tag != "p" and start >= 0 and ATTRIBUTES.fullmatch(text, start) is not None
    return text[:start].rstrip() if is_heading else text
