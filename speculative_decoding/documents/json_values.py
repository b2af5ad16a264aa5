"""Finds the values of a JSON text with their keys and positions. No recursion: memory use depends on `MAX_DEPTH`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache, partial
from json import JSONDecodeError
from typing import NamedTuple

from .cells import blocks_of, end_of
from .tokens import Part, Point, Text, Write

MAX_DEPTH = 1000  # maximum nesting of objects and arrays; Python's parser accepts about as many
SPACES = r"[ \t\n\r]*+"
SCALAR = r"(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+|true|false|null|NaN|-?Infinity)"
TOKEN = re.compile(rf'{SPACES}("(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{{4}}))*+"|{SCALAR}|[][{{}},:])')
SCALARS = re.compile(rf"(?:{SPACES},{SPACES}{SCALAR})*+")  # the rest of an array of numbers, in a single step
SPACE = re.compile(SPACES)
# An escaped character, white space between two columns, or other text without escapes
SPELLED = re.compile(r"\\u[Dd][89ABab]..\\u[Dd][C-Fc-f]..|\\u....|\\.|\s{2,}|(?:[^\\\s]++|\s(?!\s))++")
ESCAPED = re.compile(r"\\u(?!00[0-7])[\dA-Fa-f]{4}")  # an escaped character beyond ASCII


class Value(NamedTuple):
    """A value in a JSON text.

    key: The key of the innermost member of an object that contains it. None outside objects.
    depth: The number of objects and arrays that contain it.
    start, end: Its position. For an object or an array, `end` is the position after the opening bracket.
    """

    key: str | None
    depth: int
    start: int
    end: int


def values_of(text: str) -> Iterator[Value]:
    """Yield the values of a JSON text in order, including objects and arrays.

    Of consecutive numbers, booleans and nulls in an array, only the first is yielded.
    Accepts what Python's module json accepts, with at most `MAX_DEPTH` levels. Raises `JSONDecodeError`.
    """
    outer: list[tuple[str, str | None]] = []  # closing bracket and key of each open object or array
    key, closing, position = None, "", 0
    wanted = "value"
    while match := TOKEN.match(text, position):
        start, position = match.span(1)
        first = text[start]
        if wanted.startswith("key") and first == '"':
            key, wanted = unescaped(text[start + 1 : position - 1]), ":"
        elif first == wanted == ":":
            wanted = "value"
        elif wanted.startswith("value") and first not in "]},:":
            yield Value(key, len(outer), start, position)
            wanted = "end"
            if closing == "]" and first not in '"{[':
                position = end_of(SCALARS, text, position)
            elif first in "{[":
                if len(outer) == MAX_DEPTH:
                    raise JSONDecodeError(f"more than {MAX_DEPTH} levels of objects and arrays", text, start)
                outer.append((closing, key))
                closing, wanted = ("}", "key or end") if first == "{" else ("]", "value or end")
        elif wanted.endswith("end") and first == closing:
            closing, key = outer.pop()
            wanted = "end"
        elif wanted == "end" and first == "," and outer:
            wanted = "key" if closing == "}" else "value"
        else:
            position = start
            break
    position = end_of(SPACE, text, position)
    if position < len(text) or outer or wanted != "end":
        raise JSONDecodeError(problem_at(text, position), text, position)


def problem_at(text: str, position: int) -> str:
    if text.startswith(("//", "/*", "#"), position):
        return "comments are not JSON"
    return f"unexpected {text[position : position + 10]!r}" if position < len(text) else "unexpected end"


def unescaped(raw: str) -> str:
    """Return the text of a JSON string. raw: the string without its quotation marks."""
    return str(json.loads(f'"{raw}"')) if "\\" in raw else raw


def blocks_of_string(raw: str, number: int, write: Write) -> Iterator[Part]:
    """Yield the blocks of a JSON string. raw: the string without its quotation marks. number: its line's number."""
    return blocks_of(
        [escape(each) if each[0] == "\\" else Text(each, each) for each in SPELLED.findall(raw)], number, write
    )


@lru_cache(1 << 12)  # a text may consist only of escapes, and shared tokens save memory
def escape(spelled: str) -> Text | Point:
    """Return the token for an escape: a `Point` for NUL and lone surrogates, which cannot be decoded, else a `Text`."""
    text = unescaped(spelled)
    return Point(spelled) if text == "\0" or "\ud800" <= text <= "\udfff" else Text(text, spelled)


def writer(text: str) -> Write:
    r"""Return a function that escapes text like this JSON text: as "\u00e9" or as "é"."""
    return partial(escaped, ensure_ascii=ESCAPED.search(text) is not None and text.isascii())


def escaped(text: str, ensure_ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
