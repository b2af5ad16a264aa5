"""Markdown: CommonMark with tables, strikethrough and front matter.

The text of paragraphs, headings and cells is decoded. markdown-it-py finds the blocks, and this module where their text
lies in the document, after the markup of lists and quotes. All else is copied: code, HTML blocks, link reference
definitions, formulas, and the markup around the text of a block.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, reference
from markdown_it.token import Token as Event

from .markdown_blocks import TITLE, add_rules
from .markdown_inline import Content, Span, inline_parts
from .options import DocumentOptions
from .tokens import Literal, Part

DEEPEST = 100  # lists and quotes within each other; deeper lines are copied
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n(?![ \t]*\n)(?:.*\n)*?(?:\1|\.\.\.)[ \t]*(?:\n|\Z)")
CELL_END = re.compile(r"(?<!\\)\|")
LINES, CELL = 0, 1


def parse(lines: Iterable[str], options: DocumentOptions) -> Iterator[Part]:
    """Yield the parts of a Markdown document, which is read as a whole."""
    text = "".join(lines)
    outline = Outline(text)
    position = 0
    for content in outline.contents(text):
        if position < content.start:
            yield Literal(text[position : content.start])
        yield from inline_parts(content, outline.env)
        position = content.end
    if position < len(text):
        yield Literal(text[position:])


def too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A rule that copies a line, as each level of lists and quotes needs stack frames of Python."""
    if state.level < DEEPEST:
        return False
    state.line = start + 1
    return True


def definition(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A rule for link reference definitions that leaves footnotes to paragraphs, even those of one word."""
    is_footnote = state.src.startswith("[^", state.bMarks[start] + state.tShift[start])
    return not is_footnote and reference(state, start, end, silent)


def block_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": DEEPEST + 10}).enable("table")
    parser.block.ruler.at("reference", definition)
    parser.block.ruler.before("table", "too_deep", too_deep)
    add_rules(parser)
    return parser


PARSER = block_parser()


class Outline(StateBlock):
    """Where the text of each block lies in a document.

    While markdown-it-py parses, it moves the starts of lines after the markup of the lists and quotes around them. At
    the end of each block, `push` notes these starts. It keeps no events, so memory depends on the number of blocks.
    """

    def __init__(self, text: str) -> None:
        # As markdown-it-py normalizes a text, but without moving a character; tabs at the ends of lines have no meaning
        source = text.replace("\r\n", "\t\n").replace("\r", "\n").replace("\0", "\ufffd")
        super().__init__(source, PARSER, {}, [])
        self._noted = array("q")  # for each block: line, kind, number of spans, and the start and end of each span
        self._row = -1
        self._cells: Iterator[Span] = iter(())
        front_matter = FRONT_MATTER.match(source)
        first = front_matter.group().count("\n") if front_matter else 0
        PARSER.block.tokenize(self, min(first, self.lineMax), self.lineMax)

    def contents(self, text: str) -> Iterator[Content]:
        """Yield the content of each block with text, in order."""
        noted = self._noted
        index = 0
        while index < len(noted):
            line, kind, count = noted[index : index + 3]
            index += 3
            borders = noted[index : index + 2 * count]
            index += 2 * count
            spans = list(zip(borders[::2], borders[1::2], strict=True))
            yield Content.of_cell(text, spans[0], line) if kind == CELL else Content.of_lines(text, spans, line)

    def push(self, ttype: str, tag: str, nesting: int) -> Event:
        """Begin an event. What is known of the one before, which is complete now, is noted."""
        if self.tokens and self.tokens[-1].type == "inline" and self.tokens[-1].content:
            self._note(self.tokens[-1], tag)
        self.tokens.clear()
        return super().push(ttype, tag, nesting)  # type: ignore[arg-type]

    def _note(self, inline: Event, tag: str) -> None:
        assert inline.map is not None
        first, last = inline.map
        if tag == TITLE:
            start = inline.meta["start"]
            self._noted.extend([first + 1, LINES, 1, start, start + len(inline.content)])
            return
        if tag in ("td", "th"):
            if (cell := self._cell(inline)) is not None:
                self._noted.extend([first + 1, CELL, 1, *cell])
            return
        spans = [(self.bMarks[line] + self.tShift[line], self.eMarks[line]) for line in range(first, last)]
        if tag != "p" and last == self.line:  # a heading with "#" before, and perhaps after its text
            start = self.src.index(inline.content, spans[0][0] + int(tag[1]))
            spans = [(start, start + len(inline.content))]
        start, end = spans[-1]
        spans[-1] = start, start + len(without_attributes(self.src[start:end].rstrip(), tag))
        self._noted.extend([first + 1, LINES, len(spans), *(border for span in spans for border in span)])

    def _cell(self, inline: Event) -> Span | None:
        """Return where the next cell with this content lies in its row."""
        assert inline.map is not None
        if self._row != inline.map[0]:
            self._row = inline.map[0]
            self._cells = self._cells_of(self._row)
        for start, end in self._cells:
            if self.src[start:end].replace("\\|", "|") == inline.content:
                return start, end
        return None

    def _cells_of(self, line: int) -> Iterator[Span]:
        """Yield where the texts between the pipes of a line lie."""
        start, last = self.bMarks[line] + self.tShift[line], self.eMarks[line]
        for end in [*(match.start() for match in CELL_END.finditer(self.src, start, last)), last]:
            cell = self.src[start:end]
            left = start + len(cell) - len(cell.lstrip())
            yield left, max(left, start + len(cell.rstrip()))
            start = end + 1


def without_attributes(text: str, tag: str) -> str:
    """Return the text of a heading without attributes such as "{#name .class}" at its end."""
    start = text.rfind("{")
    if tag == "p" or not text.endswith("}") or text[start + 1 : start + 2] not in ("#", "."):
        return text
    return text[:start].rstrip()
