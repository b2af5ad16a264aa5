"""How decoded text is written in Markdown: with a backslash before what would otherwise become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from .tokens import Open, Text, Token, Write

# Each of these needs a backslash at the place of the first group, or before its first character.
ANYWHERE = [
    r"[`\[\]]",
    r"\*(?!\s)|(?<!\s)\*",  # not "2 * 3"
    r"_(?!\w)|(?<!\w)_",  # not "a_b"
    r"~(?=~|$)|(?<=~)~|^~",
    r"\\(?=[!-/:-@\[-`{-~]|$)",
    r"<(?=[A-Za-z/!?]|$)",
    r"&(?=#?\w|$)",
    r"(?:^|(?<=\s))#(?=#*$)",  # the end of a heading
]
# At the start of a text, which may be that of a line
AT_START = [r"^[-+>:](?=\s)", r"^>(?=.)", r"^(?=#{1,6}\s)", r"^[-=](?=[-=]+\s*$)", r"^:(?=::)", r"^\d{1,9}(?=[.)]\s)()"]
STARTS_BLOCK = re.compile(r"[-+*]$|\d{1,9}[.)]$|#{1,6}$|>|`{3}|~{3}|<[A-Za-z/!?]|=+$|--+$|\*\*\*+$|__+$|[|:-]+$|:::")


def starts_block(word: str) -> bool:
    """Return whether a line that begins with this word may begin a list, heading, quote, table, code or HTML block."""
    return STARTS_BLOCK.match(word) is not None


def writer_of(tokens: Iterable[Token], in_cell: bool) -> Write:
    """Return how to write decoded text in a block with these tokens."""
    starts = has_link = False
    for token in tokens:
        if isinstance(token, Text):
            starts = starts or (token.raw == token.text and start_pattern().match(token.text) is not None)
        elif isinstance(token, Open):
            has_link = has_link or token.raw == "["
    return writer(in_cell, not starts, has_link)


@lru_cache
def start_pattern() -> re.Pattern[str]:
    return re.compile("|".join(AT_START))


@lru_cache
def writer(in_cell: bool, escapes_starts: bool, before_link: bool) -> Write:
    """Return a function that writes a text.

    Args:
        in_cell: Whether a pipe ends the cell.
        escapes_starts: Whether the text must not begin as a list or the like does.
        before_link: Whether a link may follow the text, which an exclamation mark would turn into an image.
    """
    rules = ANYWHERE + [r"\|"] * in_cell + AT_START * escapes_starts + ["!$"] * before_link
    pattern = re.compile("|".join(rules))

    def escaped(match: re.Match[str]) -> str:
        found = match.group()
        return found + "\\" if found.isdigit() else "\\" + found

    return lambda text: pattern.sub(escaped, text)
