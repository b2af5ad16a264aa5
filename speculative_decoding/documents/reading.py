"""Opens documents: determines their format and encoding, and reads their lines, including line ends.

As in the WHATWG's HTML standard, a byte-order mark takes precedence, but a declaration in HTML, XLIFF or PO takes
precedence over `encoding`, which is given for all documents of a run.
"""

from __future__ import annotations

import codecs
import hashlib
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
from .encodings import BYTE_ORDER_MARKS, COMPLETE, UNICODE, encoding_named, label_of
from .findings import SHOWN
from .formats import FORMATS, format_of
from .options import DocumentOptions
from .po_encoding import HEAD as PO_HEAD
from .po_encoding import PLACEHOLDER, charset_in, encoding_of, with_charset
from .tokens import line_ends

MAX_LINE = 1 << 24  # maximum characters per line in formats that are read line by line
UTF_16_MARKS = {name: mark for mark, name in ENCODINGS.items()}
CHUNK_BYTES = 1 << 20  # number of bytes read from a pipe at a time
VALIDATED_BYTES = 1 << 16  # number of bytes compared with the decoded text at a time
HEAD = 1024  # bytes within which a document must declare its encoding
COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
DECLARED = re.compile(
    rb"""<meta\s[^>]*?\bcharset\s*=\s*["']?\s*([^\s"'/>;]+)|\A\s*<\?xml\s[^>]*?\bencoding\s*=\s*["']([^"']+)""", re.I
)


class DocumentFile:
    """A document to read. As a context manager, it opens the document and validates all of its text.

    A pipe is copied to a temporary file.

    Args:
        source: A file, or an open binary stream, which is left open.
        options: How to read it.
        name: The document's name in messages (default: the path). Its suffix determines the format.
        output_encoding: Python's name for the encoding of the output (default: the document's). It has no effect on
            formats that can write every character in any encoding.
        way_out: What to do if the document is not in its encoding, for messages.

    Attributes:
        format: One of `FORMATS`.
        own_encoding: Python's name for the encoding that a byte-order mark or the document itself declares, or None.
        is_utf8: Whether the document is read in another encoding, but is also valid UTF-8, and not only ASCII.

    Raises `InputError`, with a message that starts with the name, if the document is unreadable, too large or not valid
    text.
    """

    def __init__(
        self,
        source: Path | IO[bytes],
        options: DocumentOptions,
        name: str | None = None,
        *,
        output_encoding: str | None = None,
        way_out: str | Message = WAY_OUT,
    ) -> None:
        self.name = str(source) if name is None else name
        self.format = options.format or format_of(self.name)
        self.own_encoding: str | None = None
        self.is_utf8 = False
        self._source = source
        self._is_streamed = FORMATS[self.format].streams
        self._has_references = FORMATS[self.format].has_references
        self._max_bytes = options.max_document
        self._given_encoding = None if options.encoding is None else encoding_named(options.encoding)
        self._output_encoding = None if self._has_references else output_encoding
        self._way_out = way_out
        self._mark = b""

    @property
    def preamble(self) -> bytes:
        """The byte-order mark of the output, or b"" if there is none."""
        if self.output_encoding == self._encoding:
            return self._mark
        return UTF_16_MARKS.get(self.output_encoding, b"")

    @property
    def output_encoding(self) -> str:
        """Python's name for the encoding of the output. The document must be open, or have been open."""
        return self._output_encoding or self._encoding

    @property
    def can_write_all(self) -> bool:
        """Whether every character can be written."""
        return self._has_references or self.output_encoding in COMPLETE

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
            way_out = self._way_out if self.own_encoding is None else WAY_OUT
            raise InputError(
                f"line {number}: not {label_of(self._encoding)} ({error.reason})", way_out=way_out
            ) from error
        finally:
            with suppress(ValueError):  # the file is closed
                reader.detach()  # otherwise the reader would close the file

    def encode(self, text: str) -> bytes:
        """Encode a part of the output. Characters that the encoding of HTML or XLIFF lacks become references.

        Raises `InputError` for a character that the encoding of another format lacks.
        """
        if self._has_references and self._encoding not in UNICODE:
            return text.encode(self._encoding, "xmlcharrefreplace")
        if self.format == "po" and self.output_encoding != (self.own_encoding or "utf-8"):
            text = with_charset(text, self.output_encoding)
        try:
            return text.encode(self.output_encoding)
        except UnicodeEncodeError as error:
            character = text[error.start]
            problem = f"{label_of(self.output_encoding)} cannot write {character!r} (U+{ord(character):04X})"
            raise InputError(problem) from error

    def num_bytes(self, text: str) -> int:
        """Return the size of a part of the document, in bytes."""
        return len(text.encode(self._encoding, "replace"))

    def _open(self, stack: ExitStack) -> None:
        if self.format == "po" and self._output_encoding in UTF_16_MARKS:
            raise InputError("gettext does not read UTF-16", "output_encoding", "name utf-8")
        self._file = stack.enter_context(open_text(self._source)) if isinstance(self._source, Path) else self._source
        if not self._file.seekable():
            self._file = copy_of(self._file, None if self._is_streamed else self._max_bytes, stack)
        start = self._file.tell()
        size = self._file.seek(0, os.SEEK_END) - start
        if size > self._max_bytes and not self._is_streamed:
            way_out = Message("split it, or raise {max_document}")
            raise InputError(f"has more than {self._max_bytes} bytes", way_out=way_out)
        self._file.seek(start)
        self._find_encoding(self._file.read(PO_HEAD))
        self._start = start + len(self._mark)
        self._validate()

    def _find_encoding(self, head: bytes) -> None:
        self._mark = next((mark for mark in BYTE_ORDER_MARKS if head.startswith(mark)), b"")
        declared = None if self._mark else declared_encoding(head, self.format)
        self.own_encoding = BYTE_ORDER_MARKS.get(self._mark, declared)
        self._encoding = self.own_encoding or self._given_encoding or "utf-8"
        if self.format == "po" and self._output_encoding not in (None, "utf-8") and charset_in(head) is None:
            raise InputError("has no header that could declare it", "output_encoding", "add one, or name utf-8")

    def _check(self, line: str, number: int) -> None:
        if self._is_streamed and len(line) > MAX_LINE:
            raise InputError(f"line {number}: longer than {MAX_LINE} characters", way_out="split it")
        try:
            require_no_nul(line)
        except InputError as error:
            raise InputError(error.problem, way_out=self._way_out).at(f"line {number}") from error

    def _validate(self) -> None:
        """Read all lines. Raises `InputError` for invalid text, and if encoding the lines does not restore their bytes.

        In some encodings, one character can have several codes.
        """
        restored, original = hashlib.sha256(), hashlib.sha256()
        for line in self.lines:
            restored.update(line.encode(self._encoding))
        if self._encoding in UNICODE and self._given_encoding is None:
            return
        decoder = codecs.getincrementaldecoder("utf-8")()
        is_utf8, has_more = True, self._encoding.startswith("utf-16")  # has_more: whether it is more than ASCII
        self._file.seek(self._start)
        while chunk := self._file.read(VALIDATED_BYTES):
            original.update(chunk)
            has_more = has_more or not chunk.isascii()
            try:
                is_utf8 = is_utf8 and "\0" not in decoder.decode(chunk)
            except UnicodeDecodeError:
                is_utf8 = False
        self.is_utf8 = is_utf8 and has_more and self.own_encoding is None and self._encoding != "utf-8"
        if restored.digest() != original.digest():
            way_out = WAY_OUT if self.own_encoding else self._way_out
            raise InputError(f"has characters that {label_of(self._encoding)} can write in two ways", way_out=way_out)


def declared_encoding(content: bytes, format: str) -> str | None:
    """Return Python's name for the encoding that the first bytes of an HTML, XLIFF or PO document declare, or None.

    Raises `InputError` for an unsupported encoding.
    """
    if format == "po":
        label = charset_in(content)
        label = None if label == PLACEHOLDER else label
        name = label and encoding_of(label)
    else:
        head = content[
            : HEAD if format == "html" else content.find(b">") + 1
        ]  # the declaration of XML is its first tag
        match = DECLARED.search(COMMENT.sub(b"", head)) if FORMATS[format].has_references else None
        label = (match[1] or match[2]).decode("latin-1") if match else None
        name = label and encoding_named(label)
    if label is None:
        return None
    if name is None:
        raise InputError(f"declares the encoding {label[:SHOWN]}, which is not supported", way_out=WAY_OUT)
    return "utf-8" if name.startswith("utf-16") else name  # a declaration that can be read as ASCII is not in UTF-16


def copy_of(file: IO[bytes], max_bytes: int | None, stack: ExitStack) -> IO[bytes]:
    """Copy a pipe to a temporary file, up to the block that exceeds `max_bytes`."""
    copy = stack.enter_context(TemporaryFile())  # noqa: SIM115
    while chunk := file.read(CHUNK_BYTES):
        copy.write(chunk)
        if max_bytes is not None and copy.tell() > max_bytes:
            break
    copy.seek(0)
    return copy
