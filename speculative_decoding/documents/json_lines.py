"""Parses JSON lines. In the text of each named field, each cell of each line is a block."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby

from ..errors import InputError
from .messages import message_parts
from .options import DocumentOptions
from .tokens import Block, Break, Literal, Part, Point, Text, Token, Write, line_ends

DEFAULT_FIELDS = ("text",)
SPACE = re.compile(r"[ \t\n\r]*")
# An escaped character, white space between two cells, or other text without escapes
SPELLED = re.compile(r"\\u[Dd][89ABab]..\\u[Dd][C-Fc-f]..|\\u....|\\.|\s{2,}|(?:[^\\\s]++|\s(?!\s))++")
ESCAPED = re.compile(r"\\u(?!00[0-7])[\dA-Fa-f]{4}")  # an escaped character beyond ASCII
DECODER = json.JSONDecoder(parse_int=str, parse_float=str)  # converting long numbers would take quadratic time


def parse(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> Iterator[Part]:
    """Yield the parts of JSON lines. Memory use depends only on the longest line.

    Blank lines are copied. Raises `InputError` for a line that is not a JSON object with a string in every field.
    """
    fields = list(dict.fromkeys(options.fields or DEFAULT_FIELDS))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            yield Literal(line)
            continue
        position, write = 0, partial(escaped, ensure_ascii=ESCAPED.search(line) is not None and line.isascii())
        for start, end in text_spans(line, fields, number):
            yield Literal(line[position:start])
            yield from blocks_of(tokens_of(line[start:end]), number, write)
            position = end
        yield Literal(line[position:])


def text_spans(line: str, fields: Iterable[str], number: int) -> list[tuple[int, int]]:
    """Return the spans of the fields' texts in a line, without quotation marks, in the order in which they occur."""
    try:
        if not isinstance(DECODER.decode(line), dict):
            raise ValueError("an object is needed")
        found = {key: (start, end) for key, start, end in members(line)}  # the last one if keys are repeated
    except (ValueError, RecursionError) as error:
        raise InputError(f"line {number}: not a JSON object ({error})", way_out="correct it") from error
    spans = []
    for field in fields:
        start, end = found.get(field, (0, 0))
        if line[start] != '"':
            way_out = "name a field that has a text in every line"
            raise InputError(f"line {number} has no text in the field {field!r}", "fields", way_out)
        spans.append((start + 1, end - 1))
    return sorted(spans)


def members(line: str) -> Iterator[tuple[str, int, int]]:
    """Yield each key of a valid JSON object, and the start and end of its value."""
    position = line.index("{") + 1
    while line[position := skip_space(line, position)] != "}":
        key, position = DECODER.raw_decode(line, position)
        start = skip_space(line, skip_space(line, position) + 1)
        _, end = DECODER.raw_decode(line, start)
        yield key, start, end
        position = skip_space(line, end)
        position += line[position] == ","


def skip_space(line: str, position: int) -> int:
    match = SPACE.match(line, position)
    assert match is not None
    return match.end()


def tokens_of(raw: str) -> list[Token]:
    return [escape(each) if each[0] == "\\" else Text(each, each) for each in SPELLED.findall(raw)]


def blocks_of(text: Sequence[Token], number: int, write: Write) -> Iterator[Part]:
    """Yield a block for each cell of each line of a text, as in plain text, or a single block for an ICU message.

    number: The number of the document's line on which the text begins, from 1.
    """
    if message_parts("".join(token.text for token in text)):  # its arguments may span several lines
        yield Block([Break(token.raw) if ends_cell(token) else token for token in text], number, write)
        return
    for is_between, group in groupby(text, ends_cell):
        tokens = list(group)
        yield from (Literal(token.raw) for token in tokens) if is_between else [Block(tokens, number, write)]
        number += sum(line_ends(token.raw) for token in tokens)


def ends_cell(token: Token) -> bool:
    return token.text in ("\r", "\n", "\t") or (len(token.text) > 1 and token.text.isspace())


@lru_cache(1 << 12)  # a text may consist only of escapes, and shared tokens save memory
def escape(spelled: str) -> Text | Point:
    """Return the token for an escape: a `Point` for NUL and lone surrogates, which cannot be decoded, else a `Text`."""
    text: str = DECODER.decode(f'"{spelled}"')
    return Point(spelled) if text == "\0" or "\ud800" <= text <= "\udfff" else Text(text, spelled)


def escaped(text: str, ensure_ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
