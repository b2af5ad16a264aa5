"""Parses the fields of requests and events according to tables. JSON objects and forms share one parser.

Each API has its own tables, which are defined next to the code that uses the values. This module does not depend on
what the fields mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from ..checkpoints.json_text import is_json_value, parse_json_object
from ..errors import InputError, shown
from ..sampling.options import meant_options, option_specs, refusal, short_repr, suggested_option
from ..sampling.values import ListOf, Text, Union, Value
from .bodies import read_body
from .errors import ServerError
from .multipart import MULTIPART, Part, parse_multipart

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
ANY_TEXT = Text(may_be_empty=True)


class Anything(Value):
    """Accepts any value, for a field that is ignored or checked later."""

    expected = "anything"
    metavar = "X"

    def accept(self, value: Any) -> Any:
        return value


class File(Value):
    """Accepts a file in a form, as a `Part`."""

    expected = "a file, sent as multipart/form-data"
    metavar = "FILE"

    def accept(self, value: Any) -> Part:
        if not isinstance(value, Part):
            raise TypeError
        return value


@dataclass(frozen=True)
class Field:
    """A field of an API.

    Attributes:
        type: The type of the value, or the table of fields if the value is an object.
        option: The option that the field sets (default: the option with the same name).
        required: If the field must be sent, a description of what to send.
        refused: If the field is refused, the reason or an alternative.
        only: The only value that is accepted if the field is refused, because this value has no effect.
        ignored: Whether the field has no effect.
        blank: Whether an empty string counts as missing. In forms, an empty string always counts as missing.
    """

    type: Value | Mapping[str, Field] = ANY_TEXT
    option: str = ""
    required: str = ""
    refused: str = ""
    only: Any = None
    ignored: bool = False
    blank: bool = False


def option_fields() -> dict[str, Field]:
    """Return a field for each decoding option. Options that all rows of a batch must share are refused."""
    shared = Field(refused="is set when the server starts; leave it out")
    return {name: Field(spec.type) if spec.per_row else shared for name, spec in option_specs().items()}


async def read_fields(
    request: Request, max_bytes: int, *media_types: str, in_query: Collection[str] = ()
) -> dict[str, Any] | list[Part]:
    """Read a JSON object or a form. Raises `ServerError`.

    Args:
        request: The request.
        max_bytes: The maximum size of the body.
        media_types: The accepted media types: `JSON`, `FORM` or `MULTIPART`.
        in_query: The fields that a form may have in the query string instead. As in LibreTranslate, the query string
            takes precedence, and is ignored for a JSON object.
    """
    query = [part for part in parse_form(request.scope["query_string"]) if part.name in in_query] if in_query else []
    if in_query and not has_body(request):
        return query
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in media_types:
        raise ServerError(415, f"Content-Type must be {' or '.join(media_types)}, not {media_type[:80]!r}")
    body = await read_body(request, max_bytes)
    if media_type == JSON:
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ServerError(400, f"the body is not UTF-8 ({error.reason}, byte {error.start + 1})") from None
        return parse_json(text, "body") if text.strip() else {}
    is_multipart = media_type == MULTIPART
    parts = parse_multipart(request.headers["content-type"], body) if is_multipart else parse_form(body)
    names = {part.name for part in query}
    return [*query, *(part for part in parts if part.name not in names)]


def has_body(request: Request) -> bool:
    """Return whether a request announces a body that is not empty (RFC 9112, section 6.3)."""
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def parse_form(encoded: bytes) -> list[Part]:
    """Parse a body or query string in the format of `FORM`. Raises `ServerError`."""
    try:
        fields = parse_qsl(encoded.decode("utf-8-sig"), errors="strict")
    except UnicodeDecodeError as error:
        raise ServerError(400, f"the form is not UTF-8 ({error.reason})", code="invalid_form") from None
    return [Part(name, False, value.encode()) for name, value in fields]


def parse_json(text: str, subject: str) -> dict[str, Any]:
    """Parse a JSON object from a client. Raises `ServerError`. subject: The object's name in error messages."""
    try:
        fields = parse_json_object(text)
    except InputError as error:
        raise ServerError(400, f"invalid {subject}: {error}", code="invalid_json") from None
    if not is_json_value(fields):
        message = f"invalid {subject}: a lone surrogate, NaN or Infinity is not JSON"
        raise ServerError(400, message, code="invalid_json")
    return fields


def parse_fields(
    sent: Mapping[str, Any] | list[Part],
    table: Mapping[str, Field],
    path: str = "",
    *,
    ignores_unknown: bool = False,
) -> dict[str, Any]:
    """Return the accepted values by option name. Values from nested objects are merged into the same dict.

    Args:
        sent: An object, in which null fields count as missing; or the parts of a form, whose names may end in [].
        table: The fields of the API.
        path: The path of the object, with a dot at the end; "" for the root.
        ignores_unknown: Whether to ignore unknown fields, instead of refusing them.

    Raises:
        ServerError: A field is unknown, refused or missing, or has an invalid value. `param` is the path of the field.
    """
    is_form = isinstance(sent, list)
    values: dict[str, Any] = {}
    missing = {name: field for name, field in table.items() if field.required}
    for name, value in (grouped(sent) if isinstance(sent, list) else sent).items():
        if value is None or (ignores_unknown and name not in table):
            continue
        field, full = field_of(name, table, path), f"{path}{name}"
        if is_form:
            value = form_value(full, field.type, value)
        if value == "" and (is_form or field.blank):
            continue
        missing.pop(name, None)
        if field.refused:
            require_harmless(full, field, value)
        elif isinstance(field.type, Mapping):
            if not isinstance(value, dict):
                names = ", ".join(accepted_names(field.type))
                problem = f"must be an object with {names}, not {short_repr(value)}"
                raise ServerError.of_field(full, problem, "invalid_value")
            values |= parse_fields(value, field.type, f"{full}.")
        else:
            value = accepted(full, field.type.accept, field.type, value)
            if not field.ignored:
                values[field.option or name] = value
    for name, field in missing.items():
        problem = "is missing or empty" if field.blank else "is missing"
        raise ServerError.of_field(f"{path}{name}", f"{problem}; send {field.required}", "missing_field")
    return values


def grouped(parts: Sequence[Part]) -> dict[str, list[str | Part]]:
    """Return the texts and files of a form by field name. Raises `ServerError`."""
    found: dict[str, list[str | Part]] = {}
    for part in parts:
        name = part.name.removesuffix("[]")
        try:
            found.setdefault(name, []).append(part if part.is_file else part.content.decode())
        except UnicodeDecodeError:
            raise ServerError.of_field(name[:80], "is not UTF-8", "invalid_value") from None
    return found


def form_value(name: str, type_: Any, items: list[str | Part]) -> Any:
    """Return a form field's value, or "" if the field is empty. Browsers send empty strings for blank inputs."""
    item_type = type_.item if isinstance(type_, ListOf) else type_
    if len(items) == 1 or not isinstance(type_, Union):  # in a list of texts to translate, some may be empty
        items = [item for item in items if item != ""]
    if not isinstance(item_type, File) and any(isinstance(item, Part) for item in items):
        raise ServerError.of_field(name, "must not be a file")
    values = [accepted(name, item_type.parse, item_type, item) for item in items]
    if not values:
        return ""
    try:
        return values[0] if len(values) == 1 and item_type is type_ else type_.accept(values)
    except (ValueError, TypeError):
        raise ServerError.of_field(name, "is given twice") from None


def accepted(name: str, accept: Callable[[Any], Any], type_: Value, value: Any) -> Any:
    """Return the result of `accept`, a method of the type. Raises `ServerError` for an invalid value."""
    try:
        return accept(value)
    except (ValueError, TypeError, OverflowError):
        raise ServerError.of_field(name, refusal(type_, value), "invalid_value") from None


def require_harmless(name: str, field: Field, value: Any) -> None:
    """Raise `ServerError` for a refused field, unless its value has no effect."""
    if field.only is None:
        raise ServerError.of_field(name, field.refused, "unsupported_value")
    if value != field.only or isinstance(value, bool) != isinstance(field.only, bool):
        problem = f"must be {dumps(field.only)}, not {short_repr(value)}; {field.refused}"
        raise ServerError.of_field(name, problem, "unsupported_value")


def field_of(name: str, table: Mapping[str, Field], path: str) -> Field:
    """Look up a field by name. Raises a `ServerError` with a suggestion if the name is unknown."""
    if name in table:
        return table[name]
    known = accepted_names(table)
    meant = meant_options(name, known) or meant_options(name, table) or known
    hint = shown(suggested_option(name, meant), lambda each: f"{path}{each}")
    raise ServerError.of_field(f"{path}{name}"[:80], f"unknown field; {hint}", "unknown_field")


def option_names(table: Mapping[str, Field], path: str = "") -> dict[str, str]:
    """Map options to their fields' names, for options whose field has a different name or is nested in an object.

    path: The path of the object, with a dot at the end; "" for the root.
    """
    names: dict[str, str] = {}
    for name, field in table.items():
        if isinstance(field.type, Mapping):
            names |= option_names(field.type, f"{path}{name}.")
        elif path or field.option:
            names[field.option or name] = f"{path}{name}{'[]' if isinstance(field.type, ListOf) else ''}"
    return names


def accepted_names(table: Mapping[str, Field]) -> list[str]:
    """Return the names of the fields that have an effect, or all names if none of the fields does."""
    names = [name for name, field in table.items() if not field.ignored and (field.required or not field.refused)]
    return names or [*table]
