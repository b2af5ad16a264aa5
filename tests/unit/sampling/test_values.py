"""The types of options and flags: accepted values in Python and on the command line, and their descriptions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from speculative_decoding.sampling.values import Bool, Int, ListOf, Number, OneOrMore, OrNone, Text, Union, Value


def accepts(type_: Value, value: Any) -> bool:
    try:
        type_.accept(value)
    except (ValueError, TypeError):
        return False
    return True


def examples(type_: Value) -> tuple[list[Any], list[Any]]:
    """Return values at the limits of a type, and the nearest ones beyond them with values of other types."""
    match type_:
        case Int(minimum=low, maximum=high):
            beyond = [] if high is None else [high + 1]
            return [low, 10**9 if high is None else high], [
                low - 1,
                *beyond,
                low + 0.5,
                float(low),
                True,
                str(low),
                [low],
            ]
        case Number(minimum=low, maximum=high):
            good = [math.nextafter(low, math.inf) if type_.exclusive else low, 1e300 if math.isinf(high) else high]
            bad = [low if type_.exclusive else math.nextafter(low, -math.inf), math.nextafter(high, math.inf)]
            return [*good, *[0] * type_.or_zero], [*bad, math.nan, math.inf, 10**400, True, str(low)]
        case Text(choices=choices):
            empty = [""]
            bad = [5, True, ["a"], *(f"{each}x" for each in choices)] + empty * (not type_.may_be_empty)
            return [*(choices or ["a b"]), *empty * type_.may_be_empty], bad
        case Bool():
            return [True, False], [1, 0, "yes"]
        case OneOrMore(item=item):
            good, bad = examples(item)
            return [[], good, tuple(good)], [5, b"a", {"a": 1}, *([*good, each] for each in bad)]
        case ListOf(item=item):
            good, bad = examples(item)
            return [[], good, tuple(good)], [5, "a", b"a", {"a": 1}, *([*good, each] for each in bad)]
        case Union(types=types):
            pairs = [examples(each) for each in types]
            refused = [each for _, bad in pairs for each in bad if not any(accepts(one, each) for one in types)]
            return [each for good, _ in pairs for each in good], refused
        case _:
            raise TypeError(type_)


# Each with its description, words that the command line accepts, and words that it refuses.
TYPES: list[tuple[Value, str, dict[str, Any], list[str]]] = [
    (Int(1), "a whole number >= 1", {"1": 1, "1000000": 10**6}, ["0", "2.5", "five", ""]),
    (Int(0, 64), "a whole number, 0 to 64", {"0": 0, "64": 64}, ["65", "-1", "5.0"]),
    (Number(0), "a number >= 0", {".5": 0.5, "1e-3": 0.001, "7": 7.0}, ["-1", "nan", "inf", "1e999", "hot", ""]),
    (Number(0, 1), "a number, 0 to 1", {"0": 0.0, "1": 1.0}, ["1.1", "-0.1"]),
    (Number(1e-10, 1e10, or_zero=True), "0 or a number, 1e-10 to 1e+10", {"0": 0.0}, ["1e-11"]),
    (Number(0, exclusive=True), "a number above 0", {"1e-9": 1e-9}, ["0"]),
    (Number(0, 1, exclusive=True), "a number above 0, at most 1", {"1": 1.0}, ["0", "2"]),
    (Text(("a", "b")), "one of a, b", {"b": "b"}, ["B", "c", ""]),
    (Text(), "text that is not empty", {"a b": "a b"}, [""]),
    (Text(may_be_empty=True), "text", {"": "", "12": "12"}, []),
    (Bool(), "true or false", {"true": True, "False": False}, ["yes", "1", ""]),
    (ListOf(Int(0)), "a list, each item a whole number >= 0", {"5": 5}, ["-1", "x", "1.5"]),  # of a repeated flag
    (Union((Int(0), Text(("auto",)))), "a whole number >= 0 or one of auto", {"5": 5, "auto": "auto"}, ["5.0", "fast"]),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "expected", "words", "refused"), TYPES, ids=[each[1] for each in TYPES])
def test_a_type_accepts_its_values_and_their_words_and_describes_them(
    type_: Value, expected: str, words: dict[str, Any], refused: list[str]
) -> None:
    good, bad = examples(type_)
    assert all(accepts(type_, each) for each in good) and not any(accepts(type_, each) for each in bad)
    assert type_.expected == expected
    for word, value in words.items():
        found = type_.parse(word)
        assert found == value and type(found) is type(value)
    for word in refused:
        with pytest.raises((ValueError, TypeError)):
            type_.parse(word)


def test_none_is_a_value_and_a_word_where_a_type_allows_it() -> None:
    type_ = OrNone(Number(0))
    assert type_.expected == "a number >= 0, or none"
    assert type_.accept(None) is type_.parse("none") is None and type_.parse("2") == type_.accept(2) == 2.0
    assert not accepts(type_, -1) and not accepts(Number(0), None)


def test_objects_are_accepted_in_python_where_a_type_allows_them() -> None:
    own = object()
    assert Union((Int(0),), or_object=True).accept(own) is own and not accepts(Union((Int(0),)), own)
    assert not accepts(Union((Int(0),), or_object=True), [3])


def test_numbers_of_numpy_become_plain_numbers() -> None:
    for type_, given, kind in ((Int(0), np.int64(5), int), (Number(0), np.float32(0.5), float), (Number(0), 1, float)):
        found = type_.accept(given)
        assert type(found) is kind and found == given
