"""Tests fields of JSON objects and forms: each is accepted, or refused with an error that names it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.sampling.values import Bool, Int, ListOf, Number, OneOrMore, OrNone, Text, Union
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.fields import (
    FORM,
    JSON,
    Anything,
    Field,
    File,
    option_fields,
    parse_fields,
    read_fields,
)
from speculative_decoding.server.multipart import Part
from tests.server.test_bodies import LIMIT, request

FILE = Part("file", True, b"RIFF", "a.wav")
TABLE: Mapping[str, Field] = {
    "text": Field(),
    "word": Field(Text(), blank=True),
    "number": Field(Int(0, 9), option="count"),
    "flag": Field(Bool()),
    "threshold": Field(OrNone(Number(0))),
    "names": Field(ListOf(Text())),
    "lines": Field(OneOrMore(Text(may_be_empty=True))),
    "q": Field(Union((Text(may_be_empty=True), ListOf(Text(may_be_empty=True))))),
    "file": Field(File()),
    "echo": Field(only=False, refused="there is no echo"),
    "best_of": Field(only=1, refused="use n"),
    "voice": Field(ListOf(Text()), refused="is not supported: there is one voice"),
    "user": Field(Anything(), ignored=True),
}
SESSION: Mapping[str, Field] = {
    "type": Field(only="a", required='"a"', refused="there is no other type"),
    "inner": Field({"number": Field(Int(0), option="count"), "beams": Field(refused="is not supported: a")}),
    "format": Field({"rate": Field(only=1, refused="resample")}),
}


def read(body: bytes, media_type: str = JSON, media_types: tuple[str, ...] = (JSON,)) -> Any:
    return asyncio.run(read_fields(request([body], media_type), LIMIT, *media_types))


def texts(**fields: str | list[str]) -> list[Part]:
    lists = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    return [Part(name, False, text.encode()) for name, own in lists.items() for text in own]


def test_null_fields_count_as_missing_and_a_byte_order_mark_is_skipped() -> None:
    assert read('{"a": null, "b": [null]}'.encode("utf-8-sig")) == {"a": None, "b": [None]}
    assert read(b"") == read(b" \n") == parse_fields({"text": None, "x": None}, TABLE) == {}
    assert parse_fields({"inner": {"number": None, "x": None}, "type": "a"}, SESSION) == {}


def test_the_media_type_is_not_case_sensitive() -> None:
    media_type = "Application/X-WWW-Form-URLEncoded; charset=utf-8"
    assert read(b"q=a&q=b+c&r=%C3%A9", media_type, (JSON, FORM)) == texts(q=["a", "b c"], r="é")


MALFORMED: list[tuple[bytes, str, int, str | None, str]] = [
    (b"{", JSON, 400, "invalid_json", "not JSON"),
    (b'{"prompt": "\xff"}', JSON, 400, None, "not UTF-8 (invalid start byte, byte 13)"),
    (b'{"prompt": "\\ud800"}', JSON, 400, "invalid_json", "lone surrogate"),
    (b"{}", "", 415, None, "must be application/json, not ''"),
    (b"prompt=a", FORM, 415, None, "must be application/json, not"),
]


@pytest.mark.parametrize(
    ("body", "media_type", "status", "code", "words"), MALFORMED, ids=lambda value: str(value)[:30]
)
def test_malformed_bodies_are_refused(body: bytes, media_type: str, status: int, code: str | None, words: str) -> None:
    with pytest.raises(ServerError) as error:
        read(body, media_type)
    assert (error.value.status, error.value.code) == (status, code) and words in error.value.message


@pytest.mark.parametrize("body", [b"q=The+end.%ff", b"q=The+end.\xff"])
def test_a_form_that_is_not_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(ServerError, match="not UTF-8"):
        read(body, FORM, (FORM,))


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(min_size=1),
        "word": st.text(min_size=1),
        "number": st.integers(0, 9),
        "flag": st.booleans(),
        "threshold": st.floats(0, 1e9),
        "names": st.lists(st.text(min_size=1), min_size=1),
        "lines": st.lists(st.text(min_size=1), min_size=1),
        "q": st.text(min_size=1) | st.lists(st.text(), min_size=2),
        "user": st.text(min_size=1),
    },
)


@settings(deadline=None)
@given(VALUES)
def test_forms_have_the_values_of_json(fields: dict[str, Any]) -> None:
    def written(value: Any) -> Any:
        return list(map(written, value)) if isinstance(value, list) else str(value)

    form = {name: written(value) for name, value in fields.items()}
    expected = parse_fields(fields, TABLE)
    assert parse_fields(texts(**form), TABLE) == expected
    if "" not in form.get("q", []):  # this encoding leaves out empty texts
        body = urlencode(form, doseq=True).encode()
        assert parse_fields(read(body[:LIMIT], FORM, (FORM,)), TABLE) == expected or len(body) > LIMIT


def test_an_option_may_have_another_name_than_its_field() -> None:
    assert parse_fields({"number": 3}, TABLE) == parse_fields(texts(number="3"), TABLE) == {"count": 3}
    assert parse_fields({"type": "a", "inner": {"number": 3}}, SESSION) == {"count": 3}


def test_fields_without_effect_are_accepted() -> None:
    harmless = {"echo": False, "best_of": 1, "user": {"anything": 5}, "word": ""}
    assert parse_fields(harmless, TABLE) == {}


def test_empty_texts_of_forms_count_as_missing() -> None:
    assert parse_fields(texts(**dict.fromkeys(TABLE, "")), TABLE) == {}
    assert parse_fields(texts(names=["", "a", ""], q=["a", ""]), TABLE) == {"names": ("a",), "q": ("a", "")}


def test_forms_turn_thresholds_off_with_a_word() -> None:
    assert parse_fields(texts(threshold="none"), TABLE) == {"threshold": None}


def test_names_of_lists_may_end_with_brackets() -> None:
    parts = [*texts(names="a"), Part("names[]", False, b"b"), FILE]
    assert parse_fields(parts, TABLE) == {"names": ("a", "b"), "file": FILE}


REFUSED: list[tuple[Any, str, str, str]] = [
    ({"number": "3"}, "number", "invalid_value", "must be a whole number, 0 to 9, not '3'"),
    ({"text": 5}, "text", "invalid_value", "must be text, not 5"),
    ({"file": "a"}, "file", "invalid_value", "must be a file, sent as multipart/form-data, not 'a'"),
    ({"echo": True}, "echo", "unsupported_value", "must be false, not true; there is no echo"),
    ({"echo": 0}, "echo", "unsupported_value", "must be false, not 0; there is no echo"),
    ({"best_of": True}, "best_of", "unsupported_value", "must be 1, not true; use n"),
    ({"voice": "a"}, "voice", "unsupported_value", "is not supported: there is one voice"),
    ({"nummer": 1}, "nummer", "unknown_field", "unknown field; did you mean number?"),
    ({"users": 1}, "users", "unknown_field", "unknown field; there are text, word, number, flag, "),
    ({"x" * 99: 1}, "x" * 80, "unknown_field", "unknown field; there are "),
    (texts(number="10"), "number", "invalid_value", "must be a whole number, 0 to 9, not '10'"),
    (texts(number="9" * 5000), "number", "invalid_value", "must be a whole number, 0 to 9, not '999"),
    (texts(number=["1", "1"]), "number", "", "is given twice"),
    (texts(voice=["a", "b"]), "voice", "unsupported_value", "is not supported: there is one voice"),
    (texts(file="a"), "file", "invalid_value", "must be a file, sent as multipart/form-data, not 'a'"),
    (texts(colour=""), "colour", "unknown_field", "unknown field; there are text"),
    ([FILE, FILE], "file", "", "is given twice"),
    ([Part("text", True, b"a", "a.txt")], "text", "", "must not be a file"),
    ([Part("text", False, b"\xff")], "text", "invalid_value", "is not UTF-8"),
]
REFUSED_OBJECTS: list[tuple[Any, str, str, str]] = [
    ({}, "s.type", "missing_field", 'is missing; send "a"'),
    ({"type": "b"}, "s.type", "unsupported_value", "must be \"a\", not 'b'; there is no other type"),
    ({"type": "a", "inner": []}, "s.inner", "invalid_value", "must be an object with number, not []"),
    ({"type": "a", "inner": {"number": -1}}, "s.inner.number", "invalid_value", "must be a whole number >= 0, not -1"),
    ({"inner": {"beams": 1}}, "s.inner.beams", "unsupported_value", "is not supported: a"),
    ({"inner": {"numbers": 1}}, "s.inner.numbers", "unknown_field", "unknown field; did you mean s.inner.number?"),
    ({"format": {"x": 1}}, "s.format.x", "unknown_field", "unknown field; there are s.format.rate"),
]


@pytest.mark.parametrize(("sent", "param", "code", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_fields_are_named(sent: Any, param: str, code: str, words: str) -> None:
    with pytest.raises(ServerError) as error:
        parse_fields(sent, TABLE)
    assert (error.value.status, error.value.param, error.value.code or "") == (400, param, code)
    assert error.value.message.startswith(f"{param}: {words}")


@pytest.mark.parametrize(("sent", "param", "code", "words"), REFUSED_OBJECTS, ids=lambda value: str(value)[:40])
def test_fields_of_objects_are_named_with_their_path(sent: Any, param: str, code: str, words: str) -> None:
    with pytest.raises(ServerError) as error:
        parse_fields({"s": sent}, {"s": Field(SESSION)})
    assert (error.value.status, error.value.param, error.value.code) == (400, param, code)
    assert error.value.message == f"{param}: {words}"


def test_a_required_field_is_named_if_it_is_missing_or_empty() -> None:
    table = {"q": Field(Text(), required="a text", blank=True), "user": Field()}
    for sent in ({}, {"q": ""}, texts(q=""), texts(user="a")):
        with pytest.raises(ServerError) as error:
            parse_fields(sent, table)  # type: ignore[arg-type]
        assert error.value.message == "q: is missing or empty; send a text" and error.value.code == "missing_field"


def test_unknown_fields_are_ignored_on_request_but_known_ones_are_still_checked() -> None:
    assert parse_fields({"x": 1, "number": 3}, TABLE, ignores_unknown=True) == {"count": 3}
    assert parse_fields([*texts(x="1", number="3"), Part("y", True, b"\xff")], TABLE, ignores_unknown=True) == {
        "count": 3
    }
    with pytest.raises(ServerError, match="number: must be a whole number"):
        parse_fields({"number": "x"}, TABLE, ignores_unknown=True)
    with pytest.raises(ServerError, match=r"inner\.numbers: unknown field"):
        parse_fields({"type": "a", "inner": {"numbers": 3}}, SESSION, ignores_unknown=True)


def test_names_of_other_libraries_lead_to_fields() -> None:
    """Suggestions name accepted fields if possible, otherwise refused fields, whose error gives the reason."""
    for name, meant in (("max_new_tokens", "max_tokens"), ("do_sample", "temperature"), ("beam_size", "num_beams")):
        with pytest.raises(ServerError, match=f"unknown field; did you mean {meant}"):
            parse_fields({name: 1}, option_fields())
    with pytest.raises(ServerError, match="num_beams: is set when the server starts; leave it out"):
        parse_fields({"num_beams": 1}, option_fields())


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*TABLE, "x"]), st.recursive(st.none() | st.integers() | st.text(), st.lists)))
def test_any_object_is_accepted_or_refused_in_one_line(fields: dict[str, Any]) -> None:
    given = json.loads(json.dumps(fields))
    try:
        parse_fields(given, TABLE)
    except ServerError as error:
        assert error.status == 400 and error.param in fields and "\n" not in error.message
