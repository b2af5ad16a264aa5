"""Divides cells, which are strings of JSON or cells of tables, into a block for each column of each line.

Also contains a function that the readers of JSON and tables share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from .messages import message_parts
from .tokens import Block, Break, Literal, Part, Text, Token, Write, line_ends


def blocks_of(tokens: Sequence[Token], number: int, write: Write = str, write_first: Write = str) -> Iterator[Part]:
    """Yield a block for each column of each line of a cell, as in plain text, or a single block for an ICU message.

    Args:
        tokens: The content of the cell. Each separator of lines or columns is a separate `Text`.
        number: The number of the document's line on which the cell begins.
        write: See `Block`.
        write_first: The first block's `write_whole`.
    """
    if message_parts("".join(token.text for token in tokens)):  # its arguments may span several lines
        tokens = [Break(token.raw) if is_separator(token) else token for token in tokens]
        yield Block(tokens, number, write, write_whole=write_first)
        return
    for is_between, group in groupby(tokens, is_separator):
        found = list(group)
        if is_between:
            yield from (Literal(token.raw) for token in found)
        else:
            yield Block(found, number, write, write_whole=write_first)
            write_first = str
        number += sum(line_ends(token.raw) for token in found)


def is_separator(token: Token) -> bool:
    """Return whether a token ends a line or a column: line ends, a tab, or several spaces."""
    return isinstance(token, Text) and (
        token.text in ("\r", "\n", "\t") or (len(token.text) > 1 and token.text.isspace())
    )


def end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return the end of a match. pattern: matches at any position, possibly without characters."""
    match = pattern.match(text, position)
    assert match is not None
    return match.end()
