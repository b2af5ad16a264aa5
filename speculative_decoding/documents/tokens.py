"""A document as literals and blocks of tokens. Formats make them; nothing here knows a format or a model.

The `raw` of all parts of a document, joined in order, is the document, so everything that is not decoded is copied. The
`text` of a block's tokens, joined in order, is what a reader reads, and what is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """A part of the document that is copied, such as markup between blocks, code, or a line break.

    ends_block: False for what stands between two pieces of a block, such as the space between two sentences.
    """

    raw: str
    ends_block: bool = True


@dataclass(frozen=True, slots=True)
class Text:
    """Text to decode. raw: how the document writes it, if it differs from `text`, such as "&amp;" for "&".

    A token whose `raw` differs is a single character (or the few characters of one entity), and is never divided.
    """

    text: str
    raw: str


@dataclass(frozen=True, slots=True)
class Kept:
    """Text that stays as it is, such as inline code. raw: with its markup, such as "`x`" for "x"."""

    text: str
    raw: str


@dataclass(frozen=True, slots=True)
class Break:
    r"""A line break within a sentence, with the white space and the markup around it.

    Args:
        raw: What the document has there, such as "\n  > ", or all that stands between two cues of subtitles.
        text: A space, or nothing between characters of a script without spaces.
        is_required: Whether an output of too few words still needs this break, after its last word.
    """

    raw: str
    text: str = " "
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Open:
    """The beginning of inline markup around a part of the block, such as "**", "[" or "<b>".

    Args:
        raw: The markup.
        number: The same number as in the `Close` of this markup. One of the two may be missing in a block.
        is_link: Whether losing the markup loses content, such as the target of a link.
    """

    raw: str
    number: int
    is_link: bool = False

    @property
    def text(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Close:
    """The end of inline markup, such as "**", "](https://...)" or "</b>". number: see `Open`."""

    raw: str
    number: int

    @property
    def text(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Point:
    """Something without text at a place within a block, such as an image or a comment."""

    raw: str

    @property
    def text(self) -> str:
        return ""


Token = Text | Kept | Break | Open | Close | Point


Write = Callable[[str], str]


@dataclass(frozen=True)
class Block:
    """A paragraph, heading, table cell, line or the like: no sentence crosses its ends.

    Args:
        tokens: Its content.
        line: The line of the document on which it begins, from 1.
        write: Returns how the document must write a decoded text, such as with "&amp;" for "&". Default: unchanged.
        write_start: Returns how such a text must be written at the start of a line. Default: unchanged.
    """

    tokens: Sequence[Token]
    line: int
    write: Write = str
    write_start: Write = str

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def raw(self) -> str:
        return "".join(token.raw for token in self.tokens)


Part = Literal | Block


def line_ends(raw: str) -> int:
    """Return how many line ends a text has."""
    return raw.count("\n") + raw.count("\r") - raw.count("\r\n")
