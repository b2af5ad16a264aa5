"""Plain text: as many lines out as in, with every byte that is not decoded."""

from __future__ import annotations

import pytest
from hypothesis import given

from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.plain import MAX_LINES, parse
from speculative_decoding.documents.tokens import Block, Break
from tests.documents.decoders import document_with
from tests.documents.laws import SMALL, TEXTS, parts_in, require_laws

WAYS = [{}, {"unit": "line"}, {"unit": "paragraph"}, {"unwrap": True}]
TEXT = "  One two. Three\r\n\tfour 5.\n\n \rÉlan\u2028vital\r\n\r\n---\nhttps://example.org\nLast line"


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r", "\n\n"])
def test_only_letters_of_pieces_change(options: dict[str, object], end: str) -> None:
    require_laws(TEXT + end, **options)


@SMALL
@given(TEXTS)
@pytest.mark.parametrize("options", WAYS)
def test_only_letters_of_pieces_change_in_any_text(options: dict[str, object], text: str) -> None:
    require_laws(text, **options)


@SMALL
@given(TEXTS)
@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("output", ["", "One, two, three. Four five six seven."])
def test_there_are_as_many_lines_out_as_in(output: str, options: dict[str, object], text: str) -> None:
    written = document_with(text, lambda prompt: output, **options)
    assert written.count("\n") == text.count("\n") and written.count("\r") == text.count("\r")


def test_without_unwrapping_each_line_is_decoded_alone() -> None:
    assert [part.text for part in parts_in("One two\nthree. Four\n", unit="line") if hasattr(part, "text")] == [
        "One two",
        "three. Four",
    ]


def test_unwrapped_sentences_span_lines() -> None:
    text = "One two\n  three. Four\n五六\n七八\n\nNine\n"
    found = [part.text for part in parts_in(text, unwrap=True) if hasattr(part, "text")]
    assert found == ["One two three.", "Four 五六七八", "Nine"]
    assert document_with(text, str.upper, unwrap=True) == text.upper()


def test_a_paragraph_without_end_is_divided() -> None:
    blocks = [
        each
        for each in parse(["word\n"] * (2 * MAX_LINES + 1), DocumentOptions(unwrap=True))
        if isinstance(each, Block)
    ]
    assert [sum(isinstance(token, Break) for token in block.tokens) for block in blocks] == [MAX_LINES - 1] * 2 + [0]
    assert [block.line for block in blocks] == [1, MAX_LINES + 1, 2 * MAX_LINES + 1]
