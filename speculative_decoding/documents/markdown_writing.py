"""How decoded text is written in Markdown: with a backslash before what would otherwise become markup."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from itertools import groupby

from .tokens import Break, Open, Point, Token, Write

# A backslash is put before each of these
INLINE = (
    r"[`\[\]]"
    r"|\*(?!\s)|(?<!\s)\*"  # not in "2 * 3"
    r"|_(?!\w)|(?<!\w)_"  # not in "a_b"
    r"|~(?=~|$)|(?<=~)~|^~"
    r"|\\(?=[!-/:-@\[-`{-~]|$)"
    r"|<(?=[A-Za-z/!?]|$)"
    r"|&(?=#?\w+;|$)"
    r"|(?:^|(?<=\s))#(?=#*$)"  # at the end of a heading
)
# A backslash is put after each of these at the start of a line: the number of a list, or nothing before other markup
LINE_START = re.compile(
    r"\d{1,9}(?=[.)](?:\s|$))"
    r"|(?=[-+*]\s|#{1,6}(?:\s|$)|>|={2,}\s*$|-{2,}\s*$|([-*_])\s*(?:\1\s*){2,}$|`{3}|~{3}|<[A-Za-z/!?]|:(?:\s|::))"
    r"|(?=\[[^\]]*\]:)"  # the definition of a link
)
MARK = re.compile(r"\d+|(.)\1*", re.DOTALL)


@lru_cache
def writer(in_cell: bool, before_link: bool) -> Write:
    """Return a function that writes a text.

    Args:
        in_cell: Whether a pipe would end the cell.
        before_link: Whether a link may follow the text, which an exclamation mark would turn into an image.
    """
    pattern = re.compile(INLINE + r"|\|" * in_cell + "|!$" * before_link)
    return lambda text: pattern.sub(r"\\\g<0>", text)


def write_start(text: str, except_for: Collection[str] = ()) -> str:
    """Return how to write a text at the start of a line. except_for: first marks that stay as they are."""
    found = LINE_START.match(text)
    if not found or first_mark(text) in except_for:
        return text
    return f"{text[: found.end()]}\\{text[found.end() :]}"


def looks_like_markup(line: str) -> bool:
    size = len(first_mark(line))
    return any(write_start(start) != start for start in (line, line[:size], line[: size + 1]))


def first_mark(text: str) -> str:
    """Return the number that a text starts with, or all copies of its first character there."""
    found = MARK.match(text)
    return found.group() if found else ""


def writers_of(tokens: Sequence[Token], in_cell: bool) -> tuple[Write, Write]:
    """Return how to write text in a block with these tokens, and at the start of its lines.

    A line of the source may start with what looks like markup but is none, such as "-" far from the margin. The same
    mark stays as it is.
    """
    before_link = any(isinstance(token, Open) and token.raw == "[" for token in tokens)
    groups = groupby(tokens, lambda token: isinstance(token, Break | Point))
    lines = ["".join(token.raw for token in group) for is_gap, group in groups if not is_gap]
    marks = frozenset(first_mark(line) for line in lines if looks_like_markup(line))
    writes = partial(write_start, except_for=marks) if marks else write_start
    return writer(in_cell, before_link), str if in_cell else writes
