"""Requests of LibreTranslate's clients: JSON, and both kinds of forms."""

from __future__ import annotations

import pytest

from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.forms import parse_form
from speculative_decoding.server.multipart import Part

FILE = Part("file", True, b"abc", "a.txt")


def test_a_field_that_is_repeated_is_a_list() -> None:
    parts = [Part("q", False, b"a"), FILE, Part("source", False, b"en"), Part("q", False, "é".encode())]
    assert parse_form(parts) == ({"q": ["a", "é"], "source": "en"}, FILE)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([FILE, FILE], "file: must be one file"),
        ([Part("file", False, b"a")], "file: must be one file"),
        ([Part("q", True, b"a", "a.txt")], "q: must not be a file"),
        ([Part("q", False, b"\xff")], "q: is not UTF-8"),
    ],
)
def test_other_forms_are_refused_in_one_line(parts: list[Part], message: str) -> None:
    with pytest.raises(ServerError) as error:
        parse_form(parts)
    assert (error.value.status, error.value.message) == (400, message)
