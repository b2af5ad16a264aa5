"""JSON documents: only strings change, and the result is JSON with the same keys, numbers and order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculative_decoding.documents.json_tree import parse
from speculative_decoding.documents.json_values import MAX_DEPTH, values_of
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.tokens import Block
from speculative_decoding.errors import InputError
from tests.documents.decoders import document_with
from tests.documents.json_shapes import SHAPES, Shape
from tests.documents.properties import SMALL, TEXTS, parts_in, require_properties, swapped
from tests.documents.test_subtitles import every_third, twice


def loaded(text: str) -> Any:
    """Parse JSON, keeping repeated keys and the spelling of numbers."""
    return json.loads(text, object_pairs_hook=lambda pairs: pairs, parse_int=str.strip, parse_float=str.strip)


def shape_of(text: str) -> str:
    """Return a JSON text without the characters of its string values."""
    return re.sub(r'("(?:[^"\\]|\\.)*")(\s*:)?', lambda found: found[0] if found[2] else '""', text)


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from strings_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings_in(each)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=[*SHAPES])
def test_shapes_of_public_files_change_only_in_their_texts(shape: Shape) -> None:
    found = parse([shape.text], DocumentOptions(format="json", fields=shape.fields))
    assert [part.text for part in found if isinstance(part, Block)] == shape.decoded
    for text in (shape.text, shape.text.replace("\n", "\r\n"), "\n" + shape.text):
        require_properties(text, "json", fields=shape.fields)
    for model in (every_third, twice, lambda text: 'ü "\\\t'):
        output = document_with(shape.text, model, "json", fields=shape.fields)
        assert shape_of(output) == shape_of(shape.text)
        loaded(output)


def test_there_are_thirty_shapes() -> None:
    assert len(SHAPES) >= 30


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@SMALL
@given(VALUES, st.booleans(), st.sampled_from([None, 0, 2, "\t"]))
def test_any_json_is_edited_in_place(value: object, is_ascii: bool, indent: int | str | None) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    require_properties(text, "json")
    for model in (swapped, every_third, lambda text: 'One "two"\\ ü\u2028'):
        output = document_with(text, model, "json")
        assert shape_of(output) == shape_of(text)
        assert loaded(output) == loaded(text) or any(strings_in(value))


@SMALL
@given(VALUES, st.booleans())
def test_all_strings_are_found_at_any_depth(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    found = [json.loads(text[each.start : each.end]) for each in values_of(text) if text[each.start] == '"']
    assert found == [*strings_in(value)]


FRAGMENTS = ["{", "}", "[", "]", ",", ":", '"a"', '"', "1", "-", "0", "01", "1.", "2.5e+3", ".5", "true", "nul", "null"]
FRAGMENTS += [
    " ",
    "\n",
    "\t",
    "\\",
    '"\\u00e9"',
    '"\\u00"',
    '"\\x"',
    '"\t"',
    "NaN",
    "-Infinity",
    "\u0661",
    "\u00a0",
    "//",
    "'a'",
]


@SMALL
@given(st.lists(st.sampled_from([*FRAGMENTS, "1,", ", null", "[2, 3"]), max_size=7).map("".join))
def test_the_accepted_texts_are_those_of_the_module_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"line \d"):
            [*values_of(text)]
    else:
        assert [*values_of(text)]


DAMAGED = {
    "": "line 1: not JSON (unexpected end)",
    '{"a": "b"': "line 1: not JSON (unexpected end)",
    '{\n"a": "b",\r\n}': "line 3: not JSON (unexpected '}')",
    '{\n// a comment\n"a": "b"}': "line 2: not JSON (comments are not JSON)",
    '{"a": 1 /* b */}': "comments are not JSON",
    '# a\n{"a": 1}': "comments are not JSON",
    "{'a': 1}": "unexpected \"'a': 1}\"",
    "{a: 1}": "unexpected 'a: 1}'",
    '{"a": "b"} {}': "unexpected '{}'",
    '{"a": "\t"}': "unexpected",
    "[1, 2,]": "unexpected ']'",
    "[" * 100_000: f"more than {MAX_DEPTH} levels",
    '{"a":' * 100_000: f"more than {MAX_DEPTH} levels",
}


@pytest.mark.parametrize(("text", "words"), DAMAGED.items(), ids=lambda each: each[:20])
def test_damaged_json_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        parts_in(text, "json")
    assert words in str(refused.value) and str(refused.value).isprintable()


def test_nesting_up_to_the_limit_is_read() -> None:
    require_properties("[" * MAX_DEPTH + '"A text"' + "]" * MAX_DEPTH, "json")


def test_fields_name_the_keys_of_texts() -> None:
    text = '{"a": "one", "b": {"a": ["two", {"c": "three"}], "d": "four"}}'
    assert document_with(text, str.upper, "json", fields=["a"]) == text.replace("one", "ONE").replace("two", "TWO")
    for fields in (["a", "e"], ["b"], ["A"]):
        with pytest.raises(InputError, match="fields: no text has the key"):
            parts_in(text, "json", fields=fields)


def test_a_named_key_may_be_metadata() -> None:
    text = '{"x": "one", "@x": {"description": "two"}}'
    assert document_with(text, str.upper, "json", fields=["description"]) == text.replace("two", "TWO")


@pytest.mark.parametrize("written", ["é", r"\u00e9"])
def test_outputs_are_escaped_as_the_document_is(written: str) -> None:
    output = document_with(f'{{"{written}": "Say one"}}', lambda prompt: 'ü "\t\\', "json")
    assert json.loads(output) == {"é": 'ü "\t\\'} and output.isascii() == written.isascii()


def test_blocks_know_their_lines() -> None:
    text = '{\n"a": "One",\r\n\r\n"b": ["Two\\nThree",\n"Four"]}'
    found = [(part.text, part.line) for part in parse([text], DocumentOptions()) if isinstance(part, Block)]
    assert found == [("One", 2), ("Two", 4), ("Three", 4), ("Four", 5)]


def test_an_arb_file_names_the_language_of_the_output() -> None:
    text = '{\r\n  "@@locale" : "en",\r\n  "a": "\\"@@locale\\": \\"en\\"",\r\n  "@a": {"x": "@@locale"}\r\n}'
    for target, locale in (("pt-BR", "pt_BR"), ("zh-Hans", "zh_Hans"), ("de", "de")):
        parts = parse([text], DocumentOptions(format="json"), target)
        assert "".join(part.raw for part in parts) == text.replace('"en",', f'"{locale}",')
    escaped = '{"@@locale": "e\\"n\\\\", "a": "\\"x"}'
    parts = parse([escaped], DocumentOptions(format="json"), "de")
    assert "".join(part.raw for part in parts) == '{"@@locale": "de", "a": "\\"x"}'
    for untouched in (text, text.replace("@@locale", "locale")):
        language = None if untouched == text else "de"
        assert "".join(part.raw for part in parse([untouched], DocumentOptions(format="json"), language)) == untouched
