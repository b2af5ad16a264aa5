"""Parses forms in multipart/form-data (RFC 7578) in memory, with python-multipart.

The caller has limited the size of the body. This module limits the number of parts, their headers and the padding, so
the parsing time is at most proportional to the body's size.
"""

from __future__ import annotations

import logging
import re
from typing import Any, NamedTuple
from urllib.parse import unquote

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from .errors import ServerError

MULTIPART = "multipart/form-data"
MAX_PARTS = 200
MAX_HEADERS = 8  # maximum number of headers of a part
MAX_HEADER_BYTES = 2048  # maximum size of a header
MAX_CONTENT_TYPE = 1024  # maximum number of characters in the request's Content-Type
MAX_PADDING = 80  # maximum number of spaces after a boundary; the parser reads them one at a time

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # hides the library's warnings about malformed forms


class Part(NamedTuple):
    """A field of a form. file_name: The name sent by the client, which may contain any characters."""

    name: str
    is_file: bool
    content: bytes
    file_name: str = ""


class PartsReader:
    """Collects fields from the parser's callbacks.

    Attributes:
        parts: The complete fields.
        is_complete: Whether the parser has reached the end of the form.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.is_complete = False
        self._header = b""
        self._value = b""
        self._disposition = b""
        self._name = ""
        self._file_name: str | None = None
        self._content: list[bytes] = []

    def on_part_begin(self) -> None:
        self._disposition = b""
        self._content = []

    def on_header_begin(self) -> None:
        self._header = self._value = b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value

    def on_headers_finished(self) -> None:
        # `parse_options_header` ignores `filename*`. RFC 7578 forbids it, but some clients use it for non-ASCII names
        disposition, fields = parse_options_header(self._disposition.replace(b"filename*=", b"filename="))
        if disposition != b"form-data" or b"name" not in fields:
            raise invalid("a field has no name")
        try:
            self._name = fields[b"name"].decode()
        except UnicodeDecodeError:
            raise invalid("the name of a field is not UTF-8") from None
        self._file_name = file_name(fields[b"filename"]) if b"filename" in fields else None

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._content.append(data[start:end])

    def on_part_end(self) -> None:
        is_file = self._file_name is not None
        self.parts.append(Part(self._name, is_file, b"".join(self._content), self._file_name or ""))

    def on_end(self) -> None:
        self.is_complete = True


def file_name(written: bytes) -> str:
    """Decode a file name in the syntax of `filename` or of `filename*` (RFC 8187)."""
    text = written.decode("utf-8", "replace")
    match = re.match("utf-8'[^']*'", text, re.IGNORECASE)
    return text if match is None else unquote(text[match.end() :], errors="replace")


def parse_multipart(content_type: str, body: bytes) -> list[Part]:
    """Split a body into its fields. Raises `ServerError`."""
    if len(content_type) > MAX_CONTENT_TYPE:
        raise invalid("its Content-Type is too long")
    media_type, fields = parse_options_header(content_type.encode("latin-1", "replace"))
    if media_type != MULTIPART.encode():
        raise ServerError(415, f"Content-Type must be multipart/form-data, not {content_type[:80]!r}")
    boundary = fields.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70 or not boundary.isascii():
        raise invalid("its Content-Type has no boundary")
    delimiter = b"--" + boundary
    if body.count(b"\r\n" + delimiter) + body.startswith(delimiter) > MAX_PARTS + 1:
        raise invalid(f"it has over {MAX_PARTS} fields")
    if re.search(re.escape(b"\r\n" + delimiter) + rb"[ \t]{%d}" % (MAX_PADDING + 1), body):
        raise invalid("a boundary is followed by too many spaces")

    reader = PartsReader()
    callbacks: Any = {name: getattr(reader, name) for name in dir(reader) if name.startswith("on_")}
    parser = MultipartParser(boundary, callbacks, max_header_count=MAX_HEADERS, max_header_size=MAX_HEADER_BYTES)
    try:
        parser.write(body)
    except FormParserError as error:
        raise invalid(str(error)[:200]) from None
    if not reader.is_complete:
        raise invalid("its end is missing")
    return reader.parts


def invalid(reason: str) -> ServerError:
    return ServerError(400, f"invalid form: {reason}", code="invalid_form")
