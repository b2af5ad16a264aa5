"""Shows live text. In a terminal, pending text is dim and rewritten in place. In a pipe, each change is a JSON line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from typing import TextIO

from rich.cells import cell_len, chop_cells

from ...cli.views import visible
from .update import LiveUpdate

DIM, NORMAL, ERASE_REST = "\x1b[2m", "\x1b[0m", "\x1b[J"


class JsonLines:
    """Writes a JSON line with `final` and `pending` for each update that changes one of them."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._pending = ""

    def show(self, update: LiveUpdate) -> None:
        if update.final or update.pending != self._pending:
            self._pending = update.pending
            print(json.dumps({"final": update.final, "pending": update.pending}), file=self._file, flush=True)

    def close(self) -> None:
        """Do nothing, because each line is already complete."""


class TerminalText:
    """Writes text as one paragraph, wrapped to the width of the terminal. Final text is written only once.

    size: Returns the numbers of columns and lines of the terminal.
    """

    def __init__(self, file: TextIO, size: Callable[[], tuple[int, int]] = shutil.get_terminal_size) -> None:
        self._file = file
        self._size = size
        self._column = 0  # the column at which the final text ends
        self._pending = ""
        self._breaks = 0  # the number of line breaks between the end of the final text and the cursor

    def show(self, update: LiveUpdate) -> None:
        if update.final or update.pending != self._pending:
            self._replace_pending(update.final, update.pending)

    def close(self) -> None:
        """Remove pending text, and continue on a new line."""
        if self._column or self._pending:
            self._replace_pending("", "")
            self._file.write("\n" if self._column else "")
            self._file.flush()
            self._column = 0

    def _replace_pending(self, final: str, pending: str) -> None:
        """Write new text after the final text, with a single write so that the terminal does not flicker."""
        columns, lines = self._size()
        up = f"\x1b[{self._breaks}A" if self._breaks else ""
        right = f"\x1b[{self._column}C" if self._column else ""
        own, self._column = wrapped(visible(final), self._column, columns)
        # The cursor cannot return to the end of the final text once that end has scrolled off the screen
        rest = wrapped(visible(pending), self._column, columns)[0].split("\n")[:lines]
        self._pending, self._breaks = pending, len(rest) - 1
        shown = "\n".join(rest)
        self._file.write(f"{up}\r{right}{ERASE_REST}{own}" + (f"{DIM}{shown}{NORMAL}" if shown else ""))
        self._file.flush()


def wrapped(text: str, column: int, columns: int) -> tuple[str, int]:
    """Wrap text that starts at a given column. Returns the text with line breaks, and the column at its end.

    The terminal's last column stays empty, because terminals differ in where they place the cursor after it.
    """
    width = max(columns - 1, 2)  # a wide character takes up two columns
    written = ""
    for space, word in re.findall(r"(\s*)(\S*)", text):
        gap = " " if space and column else ""
        if column and column + cell_len(gap + word) > width:
            written, column, gap = f"{written}\n", 0, ""
        parts = chop_cells(gap + word, width) or [""]
        written += "\n".join(parts)
        column = (column if len(parts) == 1 else 0) + cell_len(parts[-1])
    return written, column
