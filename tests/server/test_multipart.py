"""Tests that forms are parsed correctly, and that forms that would take long to parse are refused."""

from __future__ import annotations

import pytest

from speculative_decoding.server import multipart
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.multipart import Part, parse_multipart

FORM = "multipart/form-data; boundary=b"
NAMED = b'Content-Disposition: form-data; name="a"'


def part(headers: bytes = NAMED, content: bytes = b"x", padding: bytes = b"") -> bytes:
    return b"--b" + padding + b"\r\n" + headers + b"\r\n\r\n" + content + b"\r\n"


@pytest.mark.parametrize("content", [b"", b"\r\n\r\n--b-", bytes(range(256)) * 300])
def test_content_is_what_was_sent(content: bytes) -> None:
    body = part(content=content) + part(b'content-disposition: form-data; filename="../f.wav"; name="file"') + b"--b--"
    assert parse_multipart(FORM, body) == [Part("a", False, content), Part("file", True, b"x", "../f.wav")]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b'name="\xc3\xa9"; filename="\xc3\xa9"', Part("é", True, b"x", "é")),
        (b"name=file; filename*=utf-8''%c3%a9.wav", Part("file", True, b"x", "é.wav")),
        (b'name="file"; filename=""', Part("file", True, b"x")),
    ],
)
def test_names_are_read_as_clients_write_them(header: bytes, expected: Part) -> None:
    assert parse_multipart(FORM, part(b"Content-Disposition: form-data; " + header) + b"--b--") == [expected]


def test_spaces_after_a_boundary_and_text_after_the_end_are_ignored() -> None:
    assert parse_multipart(FORM, part() + part(padding=b" \t ") + b"--b--\r\n--bend") == [Part("a", False, b"x")] * 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (part(NAMED + b";a=1" * 200_000), "Maximum header size exceeded"),
        (part(NAMED + b"\r\nA: b" * 100), "Maximum header count exceeded"),
        (part() + part(padding=b" " * 100_000), "too many spaces"),
        (part() * 201, "over 200 fields"),
    ],
)
def test_forms_that_take_long_are_refused(body: bytes, words: str) -> None:
    """The parser of the standard library takes 11 s for the first form, quadratic in its size."""
    with pytest.raises(ServerError, match=words) as error:
        parse_multipart(FORM, body + b"--b--")
    assert error.value.status == 400


END = b"--b--"
MALFORMED: list[tuple[str, bytes, int, str]] = [
    ("application/json", b"{}", 415, "must be multipart/form-data, not 'application/json'"),
    ("multipart/form-data", b"", 400, "no boundary"),
    (f"multipart/form-data; boundary={'b' * 71}", b"", 400, "no boundary"),
    (FORM + ";a=1" * 300, part() + END, 400, "Content-Type is too long"),
    (FORM, b"", 400, "its end is missing"),
    (FORM, b"--b\r\nabc\r\n--b--", 400, "invalid character"),
    (FORM, part(b"A: b") + END, 400, "no name"),
    (FORM, part(b"Content-Disposition: form-data") + END, 400, "no name"),
    (FORM, part(b'Content-Disposition: form-data; name="\xff"') + END, 400, "not UTF-8"),
]


@pytest.mark.parametrize(("media_type", "body", "status", "words"), MALFORMED, ids=lambda value: str(value)[:30])
def test_malformed_forms_are_refused(media_type: str, body: bytes, status: int, words: str) -> None:
    with pytest.raises(ServerError, match=words) as error:
        parse_multipart(media_type, body)
    assert error.value.status == status


def test_the_longest_content_type_is_accepted() -> None:
    boundary = "b" * 70
    media_type = f"multipart/form-data; boundary={boundary}; "
    padded = media_type + "a" * (multipart.MAX_CONTENT_TYPE - len(media_type))
    assert parse_multipart(padded, part().replace(b"--b", b"--" + boundary.encode()) + f"--{boundary}--".encode())


def test_as_many_fields_as_allowed_are_read() -> None:
    assert len(parse_multipart(FORM, part() * multipart.MAX_PARTS + b"--b--")) == multipart.MAX_PARTS
