"""JSON lines: texts are edited in place, and the result is JSON with the same other values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculative_decoding.documents.pieces import Piece
from speculative_decoding.errors import InputError
from tests.documents.decoders import document_with
from tests.documents.properties import SMALL, TEXTS, parts_in, require_properties, swapped

HAND_WRITTEN = [
    '{"text": "One. Two"}',
    '  { "a" : [1, {"text": "no"}], "text"\t:"Yes" , "n":1e400}  ',
    r'{"text": "Caf\u00e9 \"x\" \\ \/ \t tab\nsecond line.\r\nThird \ud83d\ude00"}',
    r'{"text": "half \ud83d of a pair, \u0000 NUL"}',
    '{"text": "first", "text": "last"}',
    r'{"te\u0078t": "An escaped key"}',
    '{"text": ""}',
    '{"text": "\u2028 Überall 你好。再见。"}',
    f'{{"n": {"9" * 5000}, "text": "A long number"}}',
    "",
    " ",
]


def objects_in(text: str) -> list[dict[str, object]]:
    return [json.loads(line, parse_int=str) for line in text.split("\n") if line.strip()]


def others_in(text: str) -> list[dict[str, object]]:
    return [each | {"text": ""} for each in objects_in(text)]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_only_letters_of_texts_change(end: str) -> None:
    for line in HAND_WRITTEN:
        require_properties(line + end, "jsonl")
    require_properties("\r\n".join(HAND_WRITTEN) + end, "jsonl")


def test_lines_hold_the_same_objects_with_decoded_texts() -> None:
    text = "\n".join(HAND_WRITTEN)
    outputs = objects_in(document_with(text, str.upper, "jsonl"))
    for source, output in zip(objects_in(text), outputs, strict=True):
        assert output == source | {"text": str(source["text"]).upper()}


@SMALL
@given(st.lists(st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS), max_size=3), max_size=3), st.booleans())
def test_any_json_is_edited_in_place(objects: list[dict[str, object]], is_ascii: bool) -> None:
    lines = [json.dumps({**each, "text": "A b. " + "".join(each)}, ensure_ascii=is_ascii) for each in objects]
    text = "\n".join(lines)
    require_properties(text, "jsonl")
    assert others_in(document_with(text, swapped, "jsonl")) == others_in(text)


def test_several_fields_are_decoded() -> None:
    line = '{"b": "two", "a": "one", "c": "three"}'
    assert document_with(line, str.upper, "jsonl", fields=["a", "b", "a"]) == '{"b": "TWO", "a": "ONE", "c": "three"}'


@pytest.mark.parametrize("written", ["é", r"\u00e9"])
def test_outputs_are_escaped_as_the_line_is(written: str) -> None:
    line = f'{{"name": "{written}", "text": "Say one"}}'
    output = document_with(line, lambda prompt: 'ü "\t\\', "jsonl")
    assert json.loads(output) == {"name": "é", "text": 'ü "\t\\'}
    assert output.isascii() == line.isascii()


@pytest.mark.parametrize(
    "line",
    ["no JSON", '["text"]', "1", '{"text": 1}', '{"text": null}', '{"text": ["x"]}', '{"other": "x"}', '{"text": "x"',
     '{"text": "first", "text": 2}', '{"text": "x"} {"text": "x"}', "[" * 100_000, '{"text": "\t"}'],
)  # fmt: skip
def test_a_line_without_the_text_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(InputError, match="line 2"):
        parts_in('{"text": "x"}\n' + line + "\n", "jsonl")


CELLS = {
    r"Name\tDescription": ["Name", "Description"],
    r"Open\t\tthe page": ["Open", "the page"],
    "Name   The name": ["Name", "The name"],
    r" \u00e4  B\tc ": ["ä", "B", "c"],
    r"One two.\nThree\tfour": ["One two.", "Three", "four"],
}


@pytest.mark.parametrize(("text", "cells"), CELLS.items())
def test_columns_in_a_text_stay_columns(text: str, cells: list[str]) -> None:
    line = f'{{"text": "{text}"}}\n'
    assert [part.text.strip() for part in parts_in(line, "jsonl") if isinstance(part, Piece)] == cells
    assert document_with(line, lambda text: text, "jsonl") == line
