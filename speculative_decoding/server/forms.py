"""Reads requests of LibreTranslate's clients: JSON objects, and forms of both kinds, which may contain their token."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from starlette.requests import Request

from ..errors import InputError
from ..sampling.options import validate
from ..sampling.values import Text
from .bodies import media_type, read_body, read_fields
from .errors import ServerError
from .guard import require_token
from .multipart import MULTIPART, Part, parse_multipart


async def read_request(request: Request, max_bytes: int, known: Collection[str]) -> tuple[dict[str, Any], Part | None]:
    """Return the fields of a request and its file, if it has one. Raises `ServerError`.

    Fields that are empty count as missing. A field of a form that occurs several times becomes a list.
    """
    file = None
    if media_type(request) == MULTIPART:
        fields, file = parse_form(parse_multipart(request.headers["content-type"], await read_body(request, max_bytes)))
    else:
        fields = await read_fields(request, max_bytes, accept_form=True)
    require_token(request.scope, str(fields.get("api_key", "")))
    for name in fields:
        if name not in known:
            raise ServerError.unknown_field(name, known)
    return fields, file


def require_field(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field. Raises a `ServerError` if it is missing or empty."""
    if (value := fields.get(name, "")) == "":
        raise ServerError(400, f"{name}: missing or empty", name)
    return value


def text_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that must have a text. Raises `ServerError`."""
    try:
        return validate(name, Text(), require_field(fields, name))
    except InputError as error:
        raise ServerError.of(error) from None


def parse_form(parts: list[Part]) -> tuple[dict[str, Any], Part | None]:
    values: dict[str, list[str]] = {}
    file = None
    for part in parts:
        if part.is_file != (part.name == "file") or (part.is_file and file is not None):
            problem = "must be one file" if part.name == "file" else "must not be a file"
            raise ServerError(400, f"{part.name[:80]}: {problem}", part.name[:80])
        if part.is_file:
            file = part
            continue
        try:
            values.setdefault(part.name, []).append(part.content.decode())
        except UnicodeDecodeError:
            raise ServerError(400, f"{part.name[:80]}: is not UTF-8", part.name[:80]) from None
    return {name: own if len(own) > 1 else own[0] for name, own in values.items()}, file
