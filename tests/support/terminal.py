"""Reads from pseudo-terminals, and shows what a terminal would show."""

from __future__ import annotations

import errno
import os
import re

from rich.cells import cell_len


def read_terminal(master: int) -> bytes:
    """Read from a terminal, like `os.read`; nothing if its program has ended. Linux reports the end as an error."""
    try:
        return os.read(master, 4096)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


class Screen:
    """A terminal that interprets escape sequences and keeps the lines that scroll off its top.

    cells: The characters by line and column, and whether they are dim.
    rewritten: Whether a cell that was not dim has been erased or written again.
    """

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.cells: dict[tuple[int, int], tuple[str, bool]] = {}
        self.rewritten = False
        self.line = self.column = self._lowest = 0
        self._is_dim = False

    def write(self, text: str) -> None:
        for count, command, character in re.findall(r"\x1b\[(\d*)([A-Za-z])|([\s\S])", text):
            if command:
                self._execute(command, int(count or "1"))
            elif character == "\n":
                self.line, self.column = self.line + 1, 0
            elif character == "\r":
                self.column = 0
            else:
                self._print(character)
            self._lowest = max(self._lowest, self.line)

    def flush(self) -> None:
        pass

    def text(self, *, dim: bool) -> list[str]:
        """Return the dim or the other characters of each line."""
        own = {place: character for place, (character, is_dim) in self.cells.items() if is_dim == dim}
        return ["".join(own[place] for place in sorted(own) if place[0] == line) for line in range(self._lowest + 1)]

    def _execute(self, command: str, count: int) -> None:
        if command == "A":
            self.line = max(self.line - count, self._lowest - self.lines + 1, 0)
        elif command == "C":
            self.column = min(self.column + count, self.columns - 1)
        elif command == "J":
            for place in [each for each in self.cells if each >= (self.line, self.column)]:
                self._forget(place)
        elif command == "m":
            self._is_dim = count == 2
        else:
            raise AssertionError(f"unknown command {command}")

    def _print(self, character: str) -> None:
        width = cell_len(character)
        if self.column + width > self.columns:
            self.line, self.column = self.line + 1, 0
        self._forget((self.line, self.column))
        self.cells[self.line, self.column] = (character, self._is_dim)
        self.column += width

    def _forget(self, place: tuple[int, int]) -> None:
        _, is_dim = self.cells.pop(place, ("", True))
        self.rewritten |= not is_dim
