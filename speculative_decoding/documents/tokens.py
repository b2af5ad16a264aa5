"""A document as literals and blocks of tokens. Each format makes them. Nothing here knows a format or a model.

Joining the `raw` of all parts in order gives the document, so everything that is not decoded can be copied. Joining the
`text` of a block's tokens gives the text that a reader sees, which is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .findings import Finding


@dataclass(frozen=True, slots=True)
class Literal:
    """A part of the document that is copied, such as markup between blocks, code, or a line break.

    ends_block: False if it lies between two pieces of a block, such as the space between two sentences.
    finding: What a reader should check in it.
    """

    raw: str
    ends_block: bool = True
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """Text to decode. raw: how the document writes it, if it differs from `text`, such as "&amp;" for "&".

    A token whose `raw` differs from its `text` is one character, or the few characters of an entity. It is not divided.
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
    r"""A line break within a block, with the white space and the markup around it.

    Args:
        raw: The break in the document, such as "\n  > ", or everything between the texts of two subtitle cues.
        text: A space, or nothing between characters of a script without spaces.
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
        number: The number of the `Close` that ends this markup. A block may lack one of the two.
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
    """Something within a block that has no text, such as an image or a comment."""

    raw: str


Token = Text | Kept | Break | Open | Close | Point


Write = Callable[[str], str]


@dataclass(frozen=True)
class Block:
    """A part of the document in which whole sentences lie, such as a paragraph, a heading, a table cell or a line.

    Args:
        tokens: Its content.
        line: The line of the document on which it begins, from 1.
        write: Escapes a decoded text for the document, for example with "&amp;" for "&". Default: unchanged.
        write_start: Escapes a written text once more if it starts a line. Default: unchanged.
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
