"""Parses tables: CSV with any common delimiter, and TSV. The cells of the named columns are decoded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from ..errors import InputError, Message
from .cells import blocks_of
from .findings import COPIED, SHOWN, Finding
from .options import DocumentOptions
from .table_cells import FORMULA, Cell, cells, double_marks, one_line, unquoted, without_formula
from .tokens import Literal, Part, Text

DELIMITERS = (",", ";", "\t", "|")
HEAD_LINES, HEAD_CHARACTERS = 100, 1 << 18  # the part of a document that determines its delimiter
SHOWN_NAMES = 20
DECLARED = re.compile(r'"?sep=([^"\r\n])"?[\r\n]*+', re.IGNORECASE)  # the first line of some CSV files, for Excel
NUMBER = re.compile("[0-9]{1,9}")
MARK = Text('"', '""')  # shared, because a cell may consist only of quotation marks
SPELLED = re.compile(r'""|\r\n?|[\n\t]|[^"\r\n\t]++')


def parse(lines: Iterable[str], options: DocumentOptions, target: str | None = None) -> Iterator[Part]:
    """Yield the parts of a table. Memory use depends only on the longest line and `MAX_CELL`.

    Raises `InputError` for missing or unknown columns, and for damaged quotation marks.
    """
    lines, is_tsv, number = iter(lines), options.format == "tsv", 1
    head = list(head_of(lines))
    delimiters: Sequence[str] = ("\t",) if is_tsv else DELIMITERS
    if not is_tsv and head and (declared := DECLARED.fullmatch(head[0])):
        yield Literal(head.pop(0))
        delimiters, number = (declared[1],), 2
    layouts = [Layout(head, number, each, options) for each in delimiters]
    layout = max(layouts, key=lambda each: each.rank)
    layout.require_columns(next((each.error for each in layouts if each.error is not None), None))
    is_header = layout.has_header
    for cell in cells(chain(head, lines), layout.delimiter, is_tsv=is_tsv, number=number):
        if is_header or cell.column not in layout.columns or not cell.content:
            yield Literal(cell.before + cell.content + cell.after)
        else:
            yield from parts_of(cell, layout.delimiter, is_tsv=is_tsv)
        is_header = is_header and (not cell.ends_row or (cell.column == 0 and not cell.content))  # not a blank line


def head_of(lines: Iterator[str]) -> Iterator[str]:
    """Yield the first lines of a document."""
    size = count = 0
    while count < HEAD_LINES and size < HEAD_CHARACTERS and (line := next(lines, "")):
        yield line
        size, count = size + len(line), count + 1


def parts_of(cell: Cell, delimiter: str, *, is_tsv: bool) -> Iterator[Part]:
    """Yield the parts of a cell to decode. Formulas are copied."""
    if FORMULA.match(cell.text):
        finding = Finding(cell.line, COPIED, cell.text[:SHOWN])
        yield Literal(cell.before + cell.content + cell.after, finding=finding)
        return
    yield Literal(cell.before)
    if cell.before:
        tokens = [MARK if each == '""' else Text(each, each) for each in SPELLED.findall(cell.content)]
        write = (lambda text: double_marks(one_line(text))) if is_tsv else double_marks
        yield from blocks_of(tokens, cell.line, write, without_formula)
    else:
        finish = without_formula if is_tsv else partial(unquoted, delimiter=delimiter, had_marks='"' in cell.content)
        yield from blocks_of([Text(cell.content, cell.content)], cell.line, one_line if is_tsv else str, finish)
    yield Literal(cell.after)


class Layout:
    """The columns of a table if it has a certain delimiter.

    Args:
        head: The first lines.
        number: The number of the first of them.
        delimiter: The delimiter.
        options: The options. Columns are names in the first row, or numbers from 1. If there are only numbers, the
            table has no header.

    Attributes:
        columns: The numbers of the columns to decode, from 0.
        error: An error in the first row.
        rank: A sort key: the layout is plausible if all columns exist, and all rows have as many cells as the first.
    """

    def __init__(self, head: Iterable[str], number: int, delimiter: str, options: DocumentOptions) -> None:
        self.delimiter = delimiter
        self._wanted = options.columns
        self._format = options.format or "csv"
        self.has_header = any(not NUMBER.fullmatch(name) for name in self._wanted)
        self.error: InputError | None = None
        rows: list[int] = []  # number of cells of each row
        self._names: list[str] = []  # cells of the first row
        try:
            for cell in cells(head, delimiter, is_tsv=self._format == "tsv", number=number):
                if not rows:
                    self._names.append(cell.text.strip())
                if cell.ends_row and (cell.column or cell.content):
                    rows.append(cell.column + 1)
                elif cell.ends_row and not rows:
                    self._names.clear()
        except InputError as error:  # the last row of the head may be incomplete
            self.error = error if not rows else None
        self._width = max(rows, default=0)
        found = {name: self._numbers(name) for name in self._wanted}
        self.columns = {number for numbers in found.values() for number in numbers}
        self._missing = [name for name, numbers in found.items() if not numbers]
        same = sum(size == rows[0] for size in rows)
        self.rank = (-len(self._missing), len(self._names) > 1, same, len(self._names))

    def _numbers(self, name: str) -> list[int]:
        if NUMBER.fullmatch(name):
            return [int(name) - 1] if 0 < int(name) <= self._width else []
        return [number for number, each in enumerate(self._names) if each == name.strip()]

    def require_columns(self, error: InputError | None) -> None:
        """Raise `InputError` if there are no columns to decode, or the table lacks one of them.

        error: An error in the first row for any delimiter, which explains a missing column.
        """
        if error is not None and (self._missing or not self._wanted):
            raise error
        names = [f"{each[:SHOWN]!r}" for each in self._names[:SHOWN_NAMES]]
        more = ", ..." if len(self._names) > SHOWN_NAMES else ""
        way_out = f"name some of {', '.join(names)}{more}, or numbers from 1 to {self._width}"
        each = Message("{known}, each with its own {columns}", known=way_out)
        if not self._wanted:
            raise InputError(
                f"{self._format} needs the columns to decode", "columns", way_out if names else "name them"
            )
        if self._missing and names:
            is_list = any(delimiter in self._missing[0] for delimiter in DELIMITERS)
            raise InputError(f"the table has no column {self._missing[0]!r}", "columns", each if is_list else way_out)
