"""Tests which fields of requests for translations are accepted, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.fields import parse_fields
from speculative_decoding.server.multipart import Part
from speculative_decoding.server.translation import FIELDS, MAX_TEXTS, default_languages, given_texts


def parse(is_form: bool = False, **fields: Any) -> tuple[Any, list[str]]:
    """Return the number of alternatives, and the texts."""
    given = {"q": "The end.", "source": "en", "target": "de"} | fields
    parts = [Part(name, False, str(value).encode()) for name, value in given.items()]
    found = parse_fields(parts if is_form else given, FIELDS, ignores_unknown=True)
    return found.get("alternatives", 0), [each.text for each in given_texts(found)]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"format": "xml"}, "format", "must be one of text, html"),
    ({"source": ""}, "source", "missing or empty"),
    ({"target": 3}, "target", "must be"),
    ({"q": ""}, "q", "missing or empty"),
    ({"q": 5}, "q", "must be text"),
    ({"q": []}, "q", "1 to 128 texts, not 0"),
    ({"q": ["a"] * 129}, "q", "1 to 128 texts, not 129"),
    ({"alternatives": "a"}, "alternatives", "must be a whole number"),
    ({"alternatives": [1]}, "alternatives", "must be a whole number"),
    ({"alternatives": 1e400}, "alternatives", "must be a whole number"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED, ids=lambda each: str(each)[:30])
def test_refused_fields_are_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ServerError) as error:
        parse(**fields)
    assert (error.value.status, error.value.param) == (400, param)
    assert error.value.message.startswith(f"{param}: ") and words in error.value.message


def test_fields_without_effect_are_accepted() -> None:
    assert parse(format="", alternatives="", api_key="x") == parse(format="text", alternatives=0) == parse()
    assert parse(is_form=True, alternatives="0") == parse() == parse(alternatives="-2")
    assert parse(alternatives=3)[0] == parse(alternatives="3")[0] == parse(is_form=True, alternatives="3")[0] == 3
    assert len(parse(q=["a"] * MAX_TEXTS)[1]) == MAX_TEXTS


def test_a_user_interface_starts_with_english_if_the_model_translates_it() -> None:
    def chosen(**targets: str) -> str:
        listed = [{"code": code, "name": f"<{code}>", "targets": own.split()} for code, own in targets.items()]
        found = default_languages(listed)
        assert all(each["name"] == f"<{each['code']}>" for each in found.values())
        return " ".join(each["code"] for each in found.values())

    assert chosen(de="de fr", en="de en", fr="fr") == "en de"
    assert chosen(de="de fr", en="en", fr="fr") == "de fr" and chosen(en="en") == ""
