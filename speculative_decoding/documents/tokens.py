"""Represents documents of all formats as literals and blocks of tokens. Independent of formats and models.

Joining the `raw` strings of all parts in order yields the document, so everything that is not decoded can be copied.
Joining the `text` of a block's tokens yields the displayed text, which is decoded.

A document in a bilingual format, such as PO or XLIFF, contains a target for each source. Sources and finished targets
are literals. For each missing target, the parser yields a block with the source's text. Joining the `raw` strings
therefore yields the document in which each missing target is a copy of its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO

from .findings import Finding

Write = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Literal:
    """A part of the document that is copied, such as markup between blocks, code, or a line break.

    ends_block: False if it lies between two pieces of a block, such as the space between two sentences.
    finding: A finding about the copied text.
    write_whole: See `Block`.
    """

    raw: str
    ends_block: bool = True
    finding: Finding | None = None
    write_whole: Write = str


@dataclass(frozen=True, slots=True)
class Text:
    """Text to decode. raw: its spelling in the document, such as "&amp;" for "&".

    A token whose `raw` differs from its `text` is a single character, or the few characters of an entity, and is
    indivisible.
    """

    text: str
    raw: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Text that is copied, such as inline code. raw: the text with its markup, such as "`x`" for "x"."""

    text: str
    raw: str


@dataclass(frozen=True, slots=True)
class Break:
    r"""A line break within a block, with the surrounding white space and markup.

    Args:
        raw: Its spelling in the document, such as "\n > ", or everything between the text of two subtitle cues.
        text: A space, or "" between characters of a script without spaces.
        is_required: Whether this break is written after the output if the output has too few words for all breaks.
    """

    raw: str
    text: str = " "
    is_required: bool = True


class Textless:
    """A token without text."""

    __slots__ = ()

    @property
    def text(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Open(Textless):
    """The beginning of inline markup around a part of the block, such as "**", "[" or "<b>".

    Args:
        raw: The markup.
        number: The number that this token shares with its `Close`. A block may contain only one of the two.
        is_link: Whether losing the markup loses content, such as the target of a link.
    """

    raw: str
    number: int
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class Close(Textless):
    """The end of inline markup, such as "**", "](https://...)" or "</b>". number: see `Open`."""

    raw: str
    number: int


@dataclass(frozen=True, slots=True)
class Point(Textless):
    """A part of a block that has no text, such as an image or a comment."""

    raw: str


Token = Text | Kept | Break | Open | Close | Point


@dataclass(frozen=True)
class Block:
    """A part of the document that consists of whole sentences, such as a paragraph, a heading, a table cell or a line.

    Args:
        tokens: Its content.
        line: The number of the document's line on which it begins, from 1.
        write: Escapes decoded text for the document, for example "&" as "&amp;". The default returns it unchanged.
        write_start: Escapes text that `write` returned once more if it starts a line. The default returns it unchanged.
        write_whole: Escapes the finished block, for example by enclosing a cell in quotation marks if it needs them.
            The default returns it unchanged.
    """

    tokens: Sequence[Token]
    line: int
    write: Write = str
    write_start: Write = str
    write_whole: Write = str

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def raw(self) -> str:
        return "".join(token.raw for token in self.tokens)


Part = Literal | Block


def line_ends(raw: str) -> int:
    """Return the number of line ends in a string."""
    return raw.count("\n") + raw.count("\r") - raw.count("\r\n")


def read_whole(lines: Iterable[str]) -> str:
    """Join lines. Unlike "".join, this creates no list of lines, which have 50 bytes of overhead each."""
    source = StringIO(newline="")
    source.writelines(lines)
    return source.getvalue()
