"""Reads forms with a file (multipart/form-data, RFC 7578), whose body has been received within its limit."""

from __future__ import annotations

from email.message import Message
from email.parser import HeaderParser
from typing import NamedTuple

from .errors import ServerError

MAX_PARTS = 100


class Part(NamedTuple):
    """A field of a form."""

    name: str
    is_file: bool
    content: bytes


def parse_multipart(content_type: str, body: bytes) -> list[Part]:
    """Split a body into its fields. Raises `ServerError`."""
    message = Message()
    message["Content-Type"] = content_type
    if message.get_content_type() != "multipart/form-data":
        raise ServerError(415, f"Content-Type must be multipart/form-data, not {content_type[:80]!r}")
    boundary = message.get_boundary() or ""
    if not 1 <= len(boundary) <= 70 or not boundary.isascii():
        raise invalid("its Content-Type has no boundary")
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(), MAX_PARTS + 2)
    if not parts or not parts[-1].startswith(b"--"):
        raise invalid(f"it has over {MAX_PARTS} fields" if len(parts) > MAX_PARTS + 1 else "its end is missing")
    return [parse_part(part) for part in parts[:-1]]


def parse_part(part: bytes) -> Part:
    padding, _, rest = part.partition(b"\r\n")
    head, is_complete, content = rest.partition(b"\r\n\r\n")
    if padding.strip() or not is_complete:
        raise invalid("a field has no content")
    try:
        headers = HeaderParser().parsestr(head.decode())
    except UnicodeDecodeError:
        raise invalid("the name of a field is not UTF-8") from None
    name = headers.get_param("name", header="content-disposition")
    if headers.get_content_disposition() != "form-data" or not isinstance(name, str):
        raise invalid("a field has no name")
    return Part(name, headers.get_filename() is not None, content)


def invalid(reason: str) -> ServerError:
    return ServerError(400, f"invalid form: {reason}", code="invalid_form")
