"""LibreTranslate's API for texts: POST /translate and /detect, GET /languages and /frontend/settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..errors import InputError
from ..rooms import has_room
from ..sampling.options import validate
from ..sampling.values import Int, ListOf, Text, Union
from .bodies import JSON, media_type
from .errors import ServerError
from .forms import read_request, require_field, text_field
from .languages import english_name
from .texts import DividedText, Lines
from .translator import Translator, in_thread

FIELDS = ("q", "source", "target", "format", "alternatives", "api_key")
FORMATS = ("text", "html")
MAX_TEXTS = 128  # of a request


class TranslationRequest(NamedTuple):
    """is_list: whether the client sent a list of texts. alternatives: how many it would like; there are none."""

    texts: list[str]
    format: str
    is_list: bool
    source: str
    target: str
    alternatives: int = 0


async def translate(request: Request) -> Response:
    translator: Translator = request.app.state.translator
    service = translator.service
    service.require_text()
    fields, _ = await read_request(request, service.limits.max_body, FIELDS)
    wanted = parse_translation_request(fields, is_form=media_type(request) != JSON)
    request.scope["prompts"] = wanted.texts
    texts = [divided(text, wanted.format) for text in wanted.texts]
    found = await translator.translate(request, texts, wanted.source, wanted.target)
    content: dict[str, Any] = {"translatedText": found.texts if wanted.is_list else found.texts[0]}
    if wanted.alternatives:
        content["alternatives"] = [[] for _ in wanted.texts] if wanted.is_list else []
    return JSONResponse(content | found.notes(is_list=wanted.is_list))


def parse_translation_request(fields: Mapping[str, Any], *, is_form: bool) -> TranslationRequest:
    """Return the texts of a request, and their languages. Raises a `ServerError` that names the field."""
    fields = {name: value for name, value in fields.items() if value != "" or name not in ("format", "alternatives")}
    q = require_field(fields, "q")
    source, target = text_field(fields, "source"), text_field(fields, "target")
    try:
        q = validate("q", Union((Text(may_be_empty=True), ListOf(Text(may_be_empty=True)))), q)
        format = validate("format", Text(FORMATS), fields.get("format", "text"))
        given = fields.get("alternatives", 0)
        is_number = is_form and str(given).isdecimal()
        alternatives = validate("alternatives", Int(0), int(given) if is_number else given)
    except InputError as error:
        raise ServerError.of(error) from None
    if format == "html" and not has_room("documents"):
        raise ServerError(
            501, "format: html requires the folder documents, which this server lacks; send text", "format"
        )
    texts = [q] if isinstance(q, str) else list(q)
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise ServerError(400, f"q: must have 1 to {MAX_TEXTS} texts, not {len(texts)}", "q")
    return TranslationRequest(texts, format, not isinstance(q, str), source, target, alternatives)


def divided(text: str, format: str) -> DividedText:
    """Return a text of a request, to be divided into parts. format: text or html."""
    if not has_room("documents"):
        return Lines(text)
    from ..documents.options import DocumentOptions
    from .documents import Document

    return Document(text, DocumentOptions(format=format))


async def detect(request: Request) -> Response:
    translator: Translator = request.app.state.translator
    service = translator.service
    service.require_text()
    fields, _ = await read_request(request, service.limits.max_body, ("q", "api_key"))
    q = text_field(fields, "q")
    request.scope["prompts"] = [q]
    translator.detector.require_installed("q")
    codes = [*translator.languages.targets]
    client = request.client.host if request.client else ""
    return JSONResponse(await in_thread(service, client, lambda: translator.detector.detect(q, codes)))


async def languages(request: Request) -> Response:
    translator: Translator = request.app.state.translator
    translator.service.require_text()
    return JSONResponse(translator.languages.listed)


async def frontend_settings(request: Request) -> Response:
    """Return what programs with a user interface ask for, in LibreTranslate's format."""
    translator: Translator = request.app.state.translator
    translator.service.require_text()
    listed = translator.languages.listed
    needs_token = request.app.state.settings.token is not None
    formats: list[str] = []
    if has_room("documents"):
        from ..documents.formats import BY_SUFFIX

        formats = [*BY_SUFFIX]
    return JSONResponse(
        {
            "apiKeys": needs_token,
            "keyRequired": needs_token,
            "charLimit": translator.service.limits.max_body,
            "filesTranslation": bool(formats),
            "frontendTimeout": 500,
            "language": default_languages(listed),
            "suggestions": False,
            "supportedFilesFormat": formats,
        }
    )


def default_languages(listed: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the languages that a user interface should show at first: the first pair, from English if possible."""
    if not listed:
        return {}
    source = next((each for each in listed if each["code"] == "en"), listed[0])
    target = source["targets"][0]
    return {
        "source": {"code": source["code"], "name": source["name"]},
        "target": {"code": target, "name": english_name(target)},
    }
