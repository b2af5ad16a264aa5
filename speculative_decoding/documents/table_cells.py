"""Reads and writes the cells of tables: CSV with any delimiter, and TSV. Independent of models and columns.

CSV is read as by Python's module csv: a cell may be enclosed in quotation marks and then contain line breaks, and a
quotation mark within it is doubled. In addition, spaces may surround the quotation marks. In TSV, each line is a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..errors import InputError
from .cells import end_of

MAX_CELL = 1 << 22  # maximum characters of a cell with line breaks
INSIDE = re.compile(r'(?:[^"]++|"")*+')
# What spreadsheets evaluate: "=...", or a sign before a function, a reference or a DDE command
FORMULA = re.compile(r"\s*+(?:=|[-+@](?:[\w.$'!]{1,60}+[(|]|\$?[A-Z]{1,3}\$?[0-9]))")


class Cell(NamedTuple):
    """A cell of a table. Joining `before`, `content` and `after` of all cells yields the table.

    column: The number of its column, from 0.
    line: The number of the document's line on which it begins.
    before: The opening quotation mark, with spaces.
    after: The closing quotation mark, and the delimiter or the line end.
    ends_row: Whether it is the last cell of its row.
    """

    column: int
    line: int
    before: str
    content: str
    after: str
    ends_row: bool

    @property
    def text(self) -> str:
        return self.content.replace('""', '"') if self.before else self.content


def cells(lines: Iterable[str], delimiter: str, *, is_tsv: bool, number: int = 1) -> Iterator[Cell]:
    """Yield the cells of a table in order. number: the number of the first line. Raises `InputError`."""
    end = rf"({re.escape(delimiter)}|[\r\n]++|\Z)"
    closing = re.compile(rf'" *+{end}')
    plain = re.compile(rf"([^{re.escape(delimiter)}\r\n]*+){end}")
    # Quotation marks around a cell in TSV, or after spaces in CSV, must be closed on the same line
    inside = r'(?:[^"\t]++|"")*+' if is_tsv else INSIDE.pattern
    opening = re.compile(rf' {"*" if is_tsv else "+"}+"(?={inside}" *+{end})' + ("" if is_tsv else '|"'))
    numbered = enumerate(lines, number)
    for number, line in numbered:
        column, position, ends_row = 0, 0, False
        while not ends_row:
            first, before, content = number, "", ""
            if opened := opening.match(line, position):
                before, position = opened[0], opened.end()
                content, number, line, position = quoted(line, position, number, numbered)
                closed = closing.match(line, position)
                if closed is None:
                    way_out = 'double the quotation marks within a cell: "a ""b"" c"'
                    raise InputError(
                        f"line {number}: text follows the quotation mark that ends a cell", way_out=way_out
                    )
                after = closed[0]
            else:
                closed = plain.match(line, position)
                assert closed is not None
                content, after = closed.groups()
            position, ends_row = closed.end(), closed[closed.lastindex or 0] != delimiter
            yield Cell(column, first, before, content, after, ends_row)
            column += 1


def quoted(line: str, position: int, number: int, following: Iterator[tuple[int, str]]) -> tuple[str, int, str, int]:
    """Return a quoted cell's content, and the number, line and position of its closing quotation mark."""
    first, size, content = number, 0, []
    while (stop := end_of(INSIDE, line, position)) == len(line):
        content.append(line[position:])
        size += stop - position
        number, line, position = *next(following, (number, "")), 0
        if not line or size > MAX_CELL:
            problem = f"line {first}: the quotation mark that begins a cell has no counterpart"
            raise InputError(problem if not line else f"{problem} within {MAX_CELL} characters", way_out="add it")
    return "".join([*content, line[position:stop]]), number, line, stop


def double_marks(text: str) -> str:
    return text.replace('"', '""')


def one_line(text: str) -> str:
    return text.replace("\t", " ")


def without_formula(text: str) -> str:
    """Return a cell with an apostrophe before it if a spreadsheet would evaluate it, as OWASP recommends."""
    return f"'{text}" if FORMULA.match(text) else text


def unquoted(text: str, delimiter: str, had_marks: bool) -> str:
    """Return the content of a cell without quotation marks, or the quoted cell if it needs them.

    had_marks: Whether the source contains quotation marks, which are then ordinary characters.
    """
    text = without_formula(text)
    is_safe = delimiter not in text and not text.startswith('"') and (had_marks or '"' not in text)
    return text if is_safe else f'"{double_marks(text)}"'
