"""Parses plain text. Each line is a block; if paragraphs are unwrapped, all lines up to a blank line form one block.

Each cell of a row is a separate block. The white space between cells is copied, which preserves the columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .layout import line_break_text
from .options import DocumentOptions
from .tokens import Block, Break, Literal, Part, Text, Token

MAX_LINES = 1000  # in a paragraph; a longer paragraph, such as a word list, is divided
MAX_CHARACTERS = 1 << 20
CELL_END = re.compile(r"\s{2,}|\t")
UNWRAPPED_CELL_END = re.compile(r"\s{3,}|\s?\t\s?")  # two spaces may just follow a sentence, or pad a justified line


def parse(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> Iterator[Part]:
    """Yield the parts of plain text. Memory use depends only on the longest line and a paragraph's size limits."""
    is_unwrapped = options.unwrap or options.unit == "paragraph"
    cell_end = UNWRAPPED_CELL_END if is_unwrapped else CELL_END
    paragraph: list[str] = []
    size = number = 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        is_row = not is_unwrapped or cell_end.search(text) is not None
        is_full = len(paragraph) == MAX_LINES or size + len(line) > MAX_CHARACTERS
        if paragraph and (is_full or is_row or not text):
            yield from parts_of_paragraph(paragraph, number - len(paragraph))
            paragraph, size = [], 0
        if not text:
            yield Literal(line)
        elif is_row:
            yield from parts_of_row(line, number, cell_end)
        else:
            paragraph.append(line)
            size += len(line)
    if paragraph:
        yield from parts_of_paragraph(paragraph, number - len(paragraph) + 1)


def parts_of_row(line: str, number: int, cell_end: re.Pattern[str]) -> Iterator[Part]:
    """Yield a block for each cell of a line, and the white space around it. number: the line's number."""
    before, text, after = divide(line)
    position = 0
    yield from [Literal(before)] if before else []
    for space in cell_end.finditer(text):
        yield cell(text[position : space.start()], number)
        yield Literal(space[0])
        position = space.end()
    yield cell(text[position:], number)
    yield from [Literal(after)] if after else []


def cell(text: str, number: int) -> Block:
    return Block([Text(text, text)], number)


def parts_of_paragraph(lines: list[str], number: int) -> Iterator[Part]:
    """Yield a paragraph's block, and the white space around it. number: the first line's number."""
    spaced = [divide(line) for line in lines]
    tokens: list[Token] = []
    space = ""
    for before, text, after in spaced:
        if tokens:
            tokens.append(Break(space + before, line_break_text(tokens[-1].text, text)))
        tokens.append(Text(text, text))
        space = after
    yield from [Literal(spaced[0][0])] if spaced[0][0] else []
    yield Block(tokens, number)
    yield from [Literal(space)] if space else []


def divide(line: str) -> tuple[str, str, str]:
    """Split a string into leading white space, text, and trailing white space."""
    text = line.strip()
    start = line.index(text)
    return line[:start], text, line[start + len(text) :]
