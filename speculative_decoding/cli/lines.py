"""Reads text line by line, from standard input or a file, with only the current line in memory."""

from __future__ import annotations

import hashlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import BinaryIO

from ..checkpoints.text import WAY_OUT, require_no_nul
from ..checkpoints.text_stream import as_utf8
from ..errors import InputError

MAX_LINE_BYTES = 2**24  # bounds memory use for a file without line ends


@dataclass(frozen=True)
class InputLine:
    """A line of the input, without its line end and without the file's byte-order mark."""

    number: int  # from 1
    content: bytes | None  # None if it is longer than MAX_LINE_BYTES
    digest: bytes  # SHA-256
    end: int  # position of the next line in the input, in UTF-8 bytes


def read_lines(file: BinaryIO) -> Iterator[InputLine]:
    """Yield one line at a time, in UTF-8."""
    file = as_utf8(file)
    end = 0
    for number in count(1):
        chunk = file.readline(MAX_LINE_BYTES)
        if not chunk:
            return
        is_complete = chunk.endswith(b"\n") or len(chunk) < MAX_LINE_BYTES
        content = chunk.rstrip(b"\r\n").removeprefix(BOM_UTF8 if number == 1 else b"")
        line_hash = hashlib.sha256(content)
        end += len(chunk)
        while len(chunk) == MAX_LINE_BYTES and not chunk.endswith(b"\n"):
            chunk = file.readline(MAX_LINE_BYTES)
            line_hash.update(chunk.rstrip(b"\r\n"))
            end += len(chunk)
        yield InputLine(number, content if is_complete else None, line_hash.digest(), end)


def decode_line(line: InputLine) -> str:
    """Decode a line of UTF-8. Raises `InputError` for other encodings, binary files, and lines that are too long."""
    if line.content is None:
        raise InputError(f"longer than {MAX_LINE_BYTES} bytes; split it")
    try:
        text = line.content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 ({error.reason}, byte {error.start + 1})", way_out=WAY_OUT) from error
    require_no_nul(text)
    return text
