"""Strict parsing of JSON from users: job lines and request bodies."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ..errors import InputError
from ..sampling.options import short_repr
from .files import MAX_JSON_DEPTH, is_shallow


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises `InputError` for invalid JSON, duplicate names, or too many levels."""
    if not text.strip():
        raise InputError("empty (expected a JSON object)")
    try:
        value = json.loads(text, object_pairs_hook=unique_fields)
        if not is_shallow(value):
            raise ValueError(f"more than {MAX_JSON_DEPTH} levels")
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg.removesuffix(' at')}, column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"unsupported JSON ({str(error).partition(': value has')[0]})") from error
    if not isinstance(value, dict):
        raise InputError(f"must be a JSON object, not {short_repr(value)}")
    return value


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"field {name!r} is given twice")
    return dict(pairs)


def is_json_value(value: Any) -> bool:
    """Return whether a value can be written as JSON. Python's parser also accepts NaN, infinity and lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True
