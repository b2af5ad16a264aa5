"""Lines of jobs and bodies of requests: JSON objects without duplicate names."""

from __future__ import annotations

from typing import Any

import pytest

from speculative_decoding.checkpoints.files import MAX_JSON_DEPTH
from speculative_decoding.checkpoints.json_text import is_json_value, parse_json_object
from speculative_decoding.errors import InputError


def nested(levels: int) -> str:
    return '{"a": ' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (" \n", r"empty \(expected a JSON object\)"),
        ("{", r"not JSON \(.*, column 2\)"),
        ("[1]", r"must be a JSON object, not \[1\]"),
        ('{"a": 1, "a": 1}', "field 'a' is given twice"),
        ('{"b": {"a": 1, "a": 2}}', "field 'a' is given twice"),
        (nested(MAX_JSON_DEPTH), f"unsupported JSON .more than {MAX_JSON_DEPTH} levels"),
        (f'{{"a": {"1" * 5000}}}', "unsupported JSON"),
    ],
    ids=range(7),
)
def test_other_texts_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_json_object(text)


def test_an_object_of_the_largest_depth_is_read() -> None:
    assert parse_json_object(nested(MAX_JSON_DEPTH - 1))["a"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [({"a": [1, 0.5, None, "é"]}, True), ([float("nan")], False), ({"a": float("inf")}, False), ("\ud800", False)],
)
def test_only_values_that_can_be_written_are_json(value: Any, expected: bool) -> None:
    assert is_json_value(value) == expected
