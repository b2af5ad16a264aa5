"""Parses JSON files of messages: nested objects and arrays, such as those of i18next, and Flutter's ARB files.

Every string value is decoded, or only those with the named keys. Keys are copied. An ARB file names its language, which
becomes the output's.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from json import JSONDecodeError

from ..errors import InputError
from .json_values import blocks_of_string, values_of, writer
from .options import DocumentOptions
from .tokens import Literal, Part, line_ends, read_whole

LOCALE = re.compile(r'("@@locale"\s*+:\s*+)"(?:[^"\\]++|\\.)*+"')
METADATA = "@"  # a key that starts with it describes a message of an ARB file, or the file


def parse(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> Iterator[Part]:
    """Yield the parts of a JSON document. Raises `InputError` for invalid JSON, or if a named key has no strings."""
    text = read_whole(lines)
    try:
        spans = array("Q", chain.from_iterable(string_spans(text, options.fields)))  # validates the whole document
    except JSONDecodeError as error:
        number = 1 + line_ends(text[: error.pos])
        raise InputError(f"line {number}: not JSON ({error.msg})", way_out="correct it") from error
    write = writer(text)
    position, number = 0, 1
    for start, end in zip(spans[::2], spans[1::2], strict=True):
        literal = text[position:start]
        number += line_ends(literal)
        yield Literal(with_locale(literal, target))
        yield from blocks_of_string(text[start:end], number, write)
        position = end
    yield Literal(with_locale(text[position:], target))


def with_locale(literal: str, target: str | None) -> str:
    """Return a part of an ARB file with the output's language. Flutter refuses a file that names another language.

    target: A BCP 47 tag, or None if the language is unknown.
    """
    return LOCALE.sub(rf'\1"{target.replace("-", "_")}"', literal) if target else literal


def string_spans(text: str, fields: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield the span of each string to decode, without quotation marks."""
    missing, wanted = set(fields), set(fields)
    metadata: int | None = None  # depth of the enclosing member that is metadata
    for key, depth, start, end in values_of(text):
        if not wanted:
            if metadata is not None and depth > metadata:
                continue
            metadata = depth if key is not None and key.startswith(METADATA) else None
        if text[start] == '"' and metadata is None and (not wanted or key in wanted):
            missing.discard(str(key))
            yield start + 1, end - 1
    if missing:
        name = next(each for each in fields if each in missing)
        raise InputError(f"no text has the key {name!r}", "fields", "name the keys of texts, or leave it out")
