"""LibreTranslate's API for texts: POST /translate and /detect, GET /languages and /frontend/settings.

The tables of fields include the fields of the API for files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..sampling.values import Int, ListOf, Text, Union
from ..subpackages import has_subpackage
from .errors import ServerError
from .fields import ANY_TEXT, FORM, JSON, Anything, Field, File, parse_fields, read_fields
from .guard import require_token
from .languages import english_name
from .multipart import MULTIPART
from .translator import Translator, in_thread

if TYPE_CHECKING:
    from .documents import Document

FORMATS = ("text", "html")
MAX_TEXTS = 128  # of a request
LANGUAGES: Mapping[str, Field] = {
    "source": Field(Text(), required="a language, or auto", blank=True),
    "target": Field(Text(), required="a language", blank=True),
}
OF_ALL: Mapping[str, Field] = {"api_key": Field(Anything()), "file": Field(File(), ignored=True)}
FIELDS: Mapping[str, Field] = {
    "q": Field(Union((ANY_TEXT, ListOf(ANY_TEXT))), required="a text", blank=True),
    **LANGUAGES,
    "format": Field(Text(FORMATS), blank=True),
    "alternatives": Field(Int(0), blank=True),
    **OF_ALL,
}
DETECTED: Mapping[str, Field] = {"q": Field(Text(), required="a text", blank=True), **OF_ALL}
FILE = Field(File(), required="a file as multipart/form-data")
IN_FILES: Mapping[str, Field] = {**LANGUAGES, "format": Field(), **OF_ALL, "file": FILE}


async def read_request(request: Request, table: Mapping[str, Field]) -> dict[str, Any]:
    """Return the values in a JSON object or a form, and check the token. Raises `ServerError`."""
    sent = await read_fields(request, request.app.state.service.limits.max_body, JSON, FORM, MULTIPART)
    if isinstance(sent, list):
        token = "".join(part.content.decode(errors="replace") for part in sent if part.name == "api_key")
    else:
        token = str(sent.get("api_key") or "")
    require_token(request.scope, token)
    return parse_fields(sent, table)


def text_translator(request: Request, *, with_documents: bool = False) -> Translator:
    """Return the translator. Raises `ServerError` if the server is not ready or has a speech model.

    with_documents: Whether the optional subpackage documents/ is required, which divides texts.
    """
    translator: Translator = request.app.state.translator
    translator.service.require_text()
    if with_documents and not has_subpackage("documents"):
        raise ServerError(501, "translations require the subpackage documents, which is not installed on this server")
    return translator


async def translate(request: Request) -> Response:
    translator = text_translator(request, with_documents=True)
    fields = await read_request(request, FIELDS)
    texts = given_texts(fields)
    request.scope["prompts"] = [each.text for each in texts]
    content = await translator.translate(request, texts, fields["source"], fields["target"])
    if fields.get("alternatives"):  # the server makes only one translation
        content["alternatives"] = [[] for _ in texts]
    return JSONResponse(of_one(content) if isinstance(fields["q"], str) else content)


def of_one(content: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Convert the fields of a response for a list of one text to those for a single text."""
    return {name: value for name, (value,) in content.items()}


def given_texts(fields: Mapping[str, Any]) -> list[Document]:
    """Return the texts of a request. Raises `ServerError`."""
    from ..documents.options import DocumentOptions
    from .documents import Document

    texts = [fields["q"]] if isinstance(fields["q"], str) else fields["q"]
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise ServerError.of_field("q", f"must have 1 to {MAX_TEXTS} texts, not {len(texts)}")
    return [Document(text, DocumentOptions(format=fields.get("format", "text"))) for text in texts]


async def detect(request: Request) -> Response:
    translator = text_translator(request)
    q = (await read_request(request, DETECTED))["q"]
    request.scope["prompts"] = [q]
    translator.detector.require_installed("q")
    codes = [*translator.languages.targets]
    return JSONResponse(await in_thread(request, lambda: translator.detector.detect(q, codes)))


async def languages(request: Request) -> Response:
    return JSONResponse(text_translator(request).languages.listed)


async def frontend_settings(request: Request) -> Response:
    """Return the settings for programs with a user interface, in LibreTranslate's format."""
    translator = text_translator(request)
    listed = translator.languages.listed
    needs_token = request.app.state.settings.token is not None
    formats: list[str] = []
    if has_subpackage("documents"):
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
    """Return the initial languages for a user interface: the first pair of languages, from English if possible."""
    if not listed:
        return {}
    source = next((each for each in listed if each["code"] == "en"), listed[0])
    target = source["targets"][0]
    return {
        "source": {"code": source["code"], "name": source["name"]},
        "target": {"code": target, "name": english_name(target)},
    }
