"""Reads the header of a mapped file value by value, for formats that store lengths before their data."""

from __future__ import annotations

import struct
from typing import Any

from ..errors import CheckpointError
from .mapped import MappedFile


class Cursor:
    """Reads consecutive little-endian values of a header. Raises `CheckpointError` if the file ends too early.

    Args:
        file: The file, which is read from its first byte.
        format_name: The expected format, for error messages.
    """

    def __init__(self, file: MappedFile, format_name: str) -> None:
        self.data = file.data
        self.position = 0
        self._file = file
        self._format_name = format_name

    def error(self, problem: str) -> CheckpointError:
        return self._file.error(f"not a readable {self._format_name} file: {problem} (before byte {self.position})")

    def skip(self, size: int) -> int:
        """Skip `size` bytes and return the position of the first byte."""
        start = self.position
        if size > len(self.data) - start:
            raise self.error("the file is truncated")
        self.position += size
        return start

    def scalar(self, pattern: str) -> Any:
        """Read a value in a format of the `struct` module."""
        return struct.unpack_from(pattern, self.data, self.skip(struct.calcsize(pattern)))[0]

    def text(self, size: int) -> str:
        start = self.skip(size)
        return self.data[start : start + size].decode("utf-8", "replace")
