"""Plain text keeps its number of lines and every byte that is not decoded."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.pieces import Piece
from speculative_decoding.documents.plain import MAX_LINES, parse
from speculative_decoding.documents.tokens import Block, Break
from tests.documents.decoders import document_with
from tests.documents.properties import SMALL, TEXTS, parts_in, require_properties

WAYS = [{}, {"unit": "line"}, {"unit": "paragraph"}, {"unwrap": True}]
TEXT = "  One two. Three\r\n\tfour 5.\n\n \rÉlan\u2028vital\r\n\r\n---\nhttps://example.org\nLast line"


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r", "\n\n"])
def test_only_letters_of_pieces_change(options: dict[str, object], end: str) -> None:
    require_properties(TEXT + end, **options)


@SMALL
@given(TEXTS)
@pytest.mark.parametrize("options", WAYS)
def test_only_letters_of_pieces_change_in_any_text(options: dict[str, object], text: str) -> None:
    require_properties(text, **options)


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


# Line -> its cells. Columns as displayed by `expand` or a spreadsheet are divided at any separator
ROWS = {
    "Name\tDescription\tType": ["Name", "Description", "Type"],
    "value\tThe value of the property.\tstring": ["value", "The value of the property.", "string"],
    "Open the page\t\tSave the file": ["Open the page", "Save the file"],
    "\tOpen the page\t12\tnow\t": ["Open the page", "now"],
    "Name:   The name of the element": ["Name:", "The name of the element"],
    "-o  write the output": ["write the output"],
    "Open \t the page": ["Open", "the page"],
    "1.\tOpen the page. Close it.": ["Open the page.", "Close it."],
    "名前\u3000\u3000説明": ["名前", "説明"],
    "guard: \u2022\u00a0\u00a0Open the page": ["Open the page"],
    "guard: Open the page now": ["Open the page now"],
    "guard: Öffne\u00a0die Seite": ["Öffne\u00a0die Seite"],
    "guard: \tOpen the page\t ": ["Open the page"],
    "One two.  Three four.": ["One two.", "Three four."],
}


@pytest.mark.parametrize(("line", "cells"), ROWS.items())
def test_columns_stay_columns(line: str, cells: list[str]) -> None:
    line = line.removeprefix("guard: ")
    assert [part.text for part in parts_in(line) if isinstance(part, Piece)] == cells
    for options in WAYS if "\t" in line or "   " in line else WAYS[:2]:  # in joined lines, two spaces end no cell
        written = document_with(line + "\r\n", lambda text: "ab " * len(text.split()), **options)
        assert re.findall(r"\s{2,}|\t", written) == re.findall(r"\s{2,}|\t", line + "\r\n")


def test_a_row_ends_an_unwrapped_paragraph() -> None:
    text = "One two\nthree.\nName\tType\nfour\nfive.\n"
    found = [part.text for part in parts_in(text, unwrap=True) if isinstance(part, Piece)]
    assert found == ["One two three.", "Name", "Type", "four five."]


def test_spaces_that_justify_unwrapped_lines_divide_no_sentence() -> None:
    """A guard."""
    found = [part.text for part in parts_in("One  two\nthree  four.\n", unwrap=True) if isinstance(part, Piece)]
    assert [text.split() for text in found] == [["One", "two", "three", "four."]]


@pytest.mark.parametrize("line", ["1 2 3\n", "\n", "--- 12\r\n", "* * *\n\n"])
def test_lines_without_words_are_copied_together(line: str) -> None:
    text = line * 4000
    parts = parts_in(text)
    assert "".join(part.raw for part in parts) == text and len(parts) <= len(text) // 10_000 + 1
