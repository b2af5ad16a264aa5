"""Opens documents: determines their format and encoding, and reads their lines, including line ends.

The declared encoding of HTML and XLIFF follows the WHATWG Encoding and HTML standards, simplified.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Self

from ..checkpoints.files import open_text
from ..checkpoints.text import ENCODINGS, WAY_OUT, require_no_nul
from ..errors import InputError, Message
from .formats import FORMATS, format_of
from .options import DocumentOptions
from .tokens import line_ends

MAX_LINE = 1 << 24  # maximum characters per line in formats that are read line by line
BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8", **ENCODINGS}
UNICODE = BYTE_ORDER_MARKS.values()
CHUNK_BYTES = 1 << 20  # number of bytes read from a pipe at a time
HEAD = 1024  # bytes within which a document must declare its encoding
COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
DECLARED = re.compile(
    rb"""<meta\s[^>]*?\bcharset\s*=\s*["']?\s*([^\s"'/>;]+)|\A\s*<\?xml\s[^>]*?\bencoding\s*=\s*["']([^"']+)""", re.I
)
# Browsers map these labels to supersets. A declaration that can be read as ASCII cannot be encoded in UTF-16.
BROWSER_ENCODINGS = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "cp950",
    "utf-16": "utf-8", "utf-16-le": "utf-8", "utf-16-be": "utf-8",
}  # fmt: skip
# Only stateless encodings, so that the parts of a document can be encoded independently
SUPPORTED = {
    "utf-8", "cp866", "cp874", "cp932", "cp949", "cp950", "euc_jp", "gb18030", "koi8-r", "koi8-u", "mac-cyrillic",
    "mac-roman", *(f"cp{number}" for number in range(1250, 1259)), *(f"iso8859-{number}" for number in range(2, 17)),
}  # fmt: skip


class DocumentFile:
    """A document to read. As a context manager, it opens the document and validates all of its text.

    A pipe is copied to a temporary file.

    Args:
        source: A file, or an open binary stream, which is left open.
        options: How to read it.
        name: The document's name in messages (default: the path). Its suffix determines the format.

    Attributes:
        format: One of `FORMATS`.
        preamble: The byte-order mark, or b"" if there is none.

    Raises `InputError`, with a message that starts with the name, if the document is unreadable, too large or not valid
    text.
    """

    def __init__(self, source: Path | IO[bytes], options: DocumentOptions, name: str | None = None) -> None:
        self.name = str(source) if name is None else name
        self.format = options.format or format_of(self.name)
        self.preamble = b""
        self._source = source
        self._is_streamed = FORMATS[self.format].streams
        self._max_bytes = options.max_document

    @property
    def can_reopen(self) -> bool:
        """Whether the document can be reopened, and so can be closed between two uses."""
        return isinstance(self._source, Path) and self._source.is_file()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            try:
                self._open(stack)
            except OSError as error:
                raise InputError(
                    f"{self.name}: not readable ({error.strerror})", way_out="name another file"
                ) from error
            except InputError as error:
                raise error.at(self.name) from error
            self._opened = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def lines(self) -> Iterator[str]:
        r"""The lines, each with its line end: "\n", "\r\n" or "\r". Each access starts over at the first line."""
        self._file.seek(self._start)
        reader = TextIOWrapper(self._file, self._encoding, newline="")
        number = 1
        try:
            while line := reader.readline(MAX_LINE + 1 if self._is_streamed else -1):
                self._check(line, number)
                yield line
                number += 1
        except UnicodeDecodeError as error:
            number += line_ends(error.object[: error.start].decode(self._encoding))
            raise InputError(
                f"line {number}: not {self._encoding.upper()} ({error.reason})", way_out=WAY_OUT
            ) from error
        finally:
            with suppress(ValueError):  # the file is closed
                reader.detach()  # otherwise the reader would close the file

    def encode(self, text: str) -> bytes:
        """Encode a part of the document. Characters that the encoding of HTML or XLIFF lacks become references."""
        return text.encode(self._encoding, "strict" if self._encoding in UNICODE else "xmlcharrefreplace")

    def _open(self, stack: ExitStack) -> None:
        self._file = stack.enter_context(open_text(self._source)) if isinstance(self._source, Path) else self._source
        if not self._file.seekable():
            self._file = copy_of(self._file, None if self._is_streamed else self._max_bytes, stack)
        start = self._file.tell()
        size = self._file.seek(0, os.SEEK_END) - start
        if size > self._max_bytes and not self._is_streamed:
            way_out = Message("split it, or raise {max_document}")
            raise InputError(f"has more than {self._max_bytes} bytes", way_out=way_out)
        self._file.seek(start)
        self._find_encoding(self._file.read(HEAD))
        self._start = start + len(self.preamble)
        for _ in self.lines:
            pass
        self._require_round_trip()

    def _find_encoding(self, head: bytes) -> None:
        self.preamble = next((mark for mark in BYTE_ORDER_MARKS if head.startswith(mark)), b"")
        may_declare = FORMATS[self.format].declares_encoding and not self.preamble
        declared = declared_encoding(head) if may_declare else "utf-8"
        self._encoding = BYTE_ORDER_MARKS.get(self.preamble, declared)

    def _check(self, line: str, number: int) -> None:
        if self._is_streamed and len(line) > MAX_LINE:
            raise InputError(f"line {number}: longer than {MAX_LINE} characters", way_out="split it")
        try:
            require_no_nul(line)
        except InputError as error:
            raise error.at(f"line {number}") from error

    def _require_round_trip(self) -> None:
        """Raise `InputError` if encoding the decoded document does not restore its bytes.

        In some encodings, one character can have several codes.
        """
        if self._encoding in UNICODE:
            return
        self._file.seek(self._start)
        content = self._file.read()
        if self.encode(content.decode(self._encoding)) != content:
            raise InputError(f"has characters that {self._encoding} can write in two ways", way_out=WAY_OUT)


def declared_encoding(content: bytes) -> str:
    """Return Python's name for the encoding that the first bytes of a document declare, or "utf-8" by default.

    Raises `InputError` for an unsupported encoding.
    """
    match = DECLARED.search(COMMENT.sub(b"", content[:HEAD]))
    if match is None:
        return "utf-8"
    label = (match[1] or match[2]).decode("latin-1")
    try:
        name = codecs.lookup(re.sub("^windows-", "cp", label.lower().removeprefix("x-"))).name
    except (LookupError, ValueError):  # ValueError: the label contains a NUL character
        name = label
    if (name := BROWSER_ENCODINGS.get(name, name)) not in SUPPORTED:
        raise InputError(f"declares the encoding {label}, which is not supported", way_out=WAY_OUT)
    return name


def copy_of(file: IO[bytes], max_bytes: int | None, stack: ExitStack) -> IO[bytes]:
    """Copy a pipe to a temporary file, up to the block that exceeds `max_bytes`."""
    copy = stack.enter_context(TemporaryFile())  # noqa: SIM115
    while chunk := file.read(CHUNK_BYTES):
        copy.write(chunk)
        if max_bytes is not None and copy.tell() > max_bytes:
            break
    copy.seek(0)
    return copy
