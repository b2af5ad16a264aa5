"""Parses JSON lines: one object per line, with a text in each named field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import InputError
from .json_values import blocks_of_string, values_of, writer
from .options import DocumentOptions
from .tokens import Literal, Part

DEFAULT_FIELDS = ("text",)


def parse(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> Iterator[Part]:
    """Yield the parts of JSON lines. Memory use depends only on the longest line.

    Blank lines are copied. Raises `InputError` for a line that is not a JSON object with a string in every field.
    """
    fields = list(dict.fromkeys(options.fields or DEFAULT_FIELDS))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            yield Literal(line)
            continue
        position, write = 0, writer(line)
        for start, end in text_spans(line, fields, number):
            yield Literal(line[position:start])
            yield from blocks_of_string(line[start:end], number, write)
            position = end
        yield Literal(line[position:])


def text_spans(line: str, fields: Iterable[str], number: int) -> list[tuple[int, int]]:
    """Return the spans of the fields' texts in a line, without quotation marks, in the order in which they occur."""
    try:
        values = [each for each in values_of(line) if each.depth <= 1]
        if line[values[0].start] != "{":
            raise ValueError("an object is needed")
    except ValueError as error:
        raise InputError(f"line {number}: not a JSON object ({error})", way_out="correct it") from error
    found = {each.key: each for each in values[1:]}  # the last one if keys are repeated
    spans = []
    for field in fields:
        if field not in found or line[found[field].start] != '"':
            way_out = "name a field that has a text in every line"
            raise InputError(f"line {number} has no text in the field {field!r}", "fields", way_out)
        spans.append((found[field].start + 1, found[field].end - 1))
    return sorted(spans)
