"""Converts the text of a file or a pipe to UTF-8 while it is read."""

from __future__ import annotations

import codecs
import io
from io import BufferedReader, RawIOBase
from typing import BinaryIO

from .text import ENCODINGS


def as_utf8(file: BinaryIO) -> BufferedReader:
    """Return a reader that converts a file's text to UTF-8. It reads ahead, and does not close the file."""
    return BufferedReader(Utf8Bytes(file))


class Utf8Bytes(RawIOBase):
    """The bytes of a file, converted from UTF-16 to UTF-8 if necessary. Invalid UTF-16 yields invalid UTF-8."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._held: bytes | None = None  # bytes to return next; None before the first read
        self._decoder: codecs.IncrementalDecoder | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if self._held is None:
            self._held = self._opening()
        while not self._held:
            read = self._read()
            self._held = read if self._decoder is None else self._encoded(read)
            if not read:
                break
        size = min(len(buffer), len(self._held))
        buffer[:size], self._held = self._held[:size], self._held[size:]
        return size

    def _opening(self) -> bytes:
        """Return the first bytes as UTF-8. Waits for a second byte only if the first may start a byte-order mark."""
        read = self._read()
        if read in (b"\xfe", b"\xff"):  # these bytes never occur in UTF-8
            read += self._read()
        if encoding := ENCODINGS.get(read[:2]):
            self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
            return self._encoded(read[2:]) if read[2:] else b""
        return read

    def _read(self) -> bytes:
        return self._file.read1(io.DEFAULT_BUFFER_SIZE)  # type: ignore[attr-defined]

    def _encoded(self, read: bytes) -> bytes:
        assert self._decoder is not None
        try:
            return self._decoder.decode(read, final=not read).encode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # the last code unit is cut off
            self._decoder.reset()
            return b"\xff"
