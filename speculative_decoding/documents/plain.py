"""Plain text: each line is a block. If paragraphs are unwrapped, all lines up to a blank line are one block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .layout import line_break_text
from .options import DocumentOptions
from .tokens import Block, Break, Literal, Part, Text, Token

MAX_LINES = 1000  # of a paragraph; a longer one, such as a list of words, is divided into several
MAX_CHARACTERS = 1 << 20


def parse(lines: Iterable[str], options: DocumentOptions) -> Iterator[Part]:
    """Yield the parts of a plain text. Memory depends only on the longest line."""
    is_unwrapped = options.unwrap or options.unit == "paragraph"
    paragraph: list[str] = []
    size = number = 0
    for number, line in enumerate(lines, 1):
        is_full = not is_unwrapped or len(paragraph) == MAX_LINES or size + len(line) > MAX_CHARACTERS
        if paragraph and (is_full or not line.strip()):
            yield from parts_of_paragraph(paragraph, number - len(paragraph))
            paragraph, size = [], 0
        if line.strip():
            paragraph.append(line)
            size += len(line)
        else:
            yield Literal(line)
    if paragraph:
        yield from parts_of_paragraph(paragraph, number - len(paragraph) + 1)


def parts_of_paragraph(lines: list[str], number: int) -> Iterator[Part]:
    """Yield a block of lines, and the white space around it. number: of the first line."""
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
    """Return the white space before a text, the text, and the white space after it."""
    text = line.strip()
    start = line.index(text)
    return line[:start], text, line[start + len(text) :]
