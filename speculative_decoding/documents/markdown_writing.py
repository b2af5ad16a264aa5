"""Escapes decoded text for Markdown by putting a backslash before characters that would otherwise become markup."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from itertools import groupby

from .tokens import Break, Open, Point, Token, Write

# Characters that get a backslash
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
# Matches at the start of a line after which a backslash is inserted: a list number, or "" before other markup
LINE_START = re.compile(
    r"\d{1,9}(?=[.)](?:\s|$))"
    r"|(?=[-+*]\s|#{1,6}(?:\s|$)|>|={2,}\s*$|-{2,}\s*$|([-*_])\s*(?:\1\s*){2,}$|`{3}|~{3}|<[A-Za-z/!?]|:(?:\s|::))"
    r"|(?=\[[^\]]*\]:)"  # the definition of a link
)
MARK = re.compile(r"\d+|(.)\1*", re.DOTALL)


@lru_cache
def writer(in_cell: bool, before_link: bool) -> Write:
    """Return a function that escapes inline markup in a string.

    Args:
        in_cell: Whether a pipe would end the cell.
        before_link: Whether a link may follow the text. An exclamation mark would turn the link into an image.
    """
    pattern = re.compile(INLINE + r"|\|" * in_cell + "|!$" * before_link)
    return lambda text: pattern.sub(r"\\\g<0>", text)


@lru_cache
def attribute_writer(quote: str) -> Write:
    """Return a function that escapes text in quotation marks or parentheses, even in a cell, with references."""
    pattern = re.compile(rf"[|{re.escape('()' if quote == '(' else quote)}]|\\(?=[!-/:-@\[-`{{-~]|$)|&(?=#?\w+;|$)")
    return lambda text: pattern.sub(lambda found: f"&#{ord(found[0])};", text)


def write_start(text: str, except_for: Collection[str] = ()) -> str:
    """Escape text at the start of a line. except_for: initial marks that are not escaped."""
    found = LINE_START.match(text)
    if not found or first_mark(text) in except_for:
        return text
    return f"{text[: found.end()]}\\{text[found.end() :]}"


def looks_like_markup(line: str) -> bool:
    size = len(first_mark(line))
    return any(write_start(start) != start for start in (line, line[:size], line[: size + 1]))


def first_mark(text: str) -> str:
    """Return the run of digits, or of one repeated character, at the start of a string."""
    found = MARK.match(text)
    return found.group() if found else ""


def writers_of(tokens: Sequence[Token], in_cell: bool) -> tuple[Write, Write]:
    """Return two functions that escape text in a block with these tokens: anywhere, and at the start of a line.

    A line of the source may start with a mark that only looks like markup, such as a deeply indented "-". The same mark
    is not escaped in the output.
    """
    before_link = any(isinstance(token, Open) and token.raw == "[" for token in tokens)
    groups = groupby(tokens, lambda token: isinstance(token, Break | Point))
    lines = ["".join(token.raw for token in group) for is_gap, group in groups if not is_gap]
    marks = frozenset(first_mark(line) for line in lines if looks_like_markup(line))
    writes = partial(write_start, except_for=marks) if marks else write_start
    return writer(in_cell, before_link), str if in_cell else writes
