"""LibreTranslate's API for texts: POST /translate, /detect and /suggest, GET /languages and /frontend/settings.

The tables of fields also cover the API for files. `Translator` admits a request, detects languages, and reads and
decodes all texts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..errors import InputError
from ..loading.task_prefixes import Pairs
from ..sampling.values import Bool, ListOf, Text, Union, Value
from ..subpackages import has_subpackage
from .bodies import cancel_on_disconnect, client_address
from .detection import Detection, Detector
from .errors import ServerError
from .fields import ANY_TEXT, FORM, JSON, Field, File, parse_fields, read_fields
from .guard import require_token
from .languages import Languages
from .multipart import MULTIPART
from .service import Service
from .texts import ClientText
from .translation_response import Translation

if TYPE_CHECKING:
    from .documents import Document, Prompting

FORMATS = ("text", "html")
MAX_TEXTS = 128  # of a request


class NumAlternatives(Value):
    """A number of alternative translations. As in LibreTranslate, it may be text, and a negative number means none."""

    expected = "a whole number"
    metavar = "N"

    def accept(self, value: Any) -> int:
        return max(0, int(value))


ONE_OR_MORE_TEXTS = Field(Union((ANY_TEXT, ListOf(ANY_TEXT))), required="a text", blank=True)
LANGUAGES: Mapping[str, Field] = {
    "source": Field(Text(), required="a language, or auto", blank=True),
    "target": Field(Text(), required="a language", blank=True),
}
NO_LANGUAGE = Field(
    refused="this model has no language pairs; leave source and target out, or start the server with --translate",
    blank=True,
)
STREAM = Field(Bool(), blank=True)
# The tables lack `api_key`: unknown fields are ignored, and only fields in a table may be in the query string, because
# proxies log it
FIELDS: Mapping[str, Field] = {
    "q": ONE_OR_MORE_TEXTS,
    **LANGUAGES,
    "format": Field(Text(FORMATS), blank=True),
    "alternatives": Field(NumAlternatives(), blank=True),
    "stream": STREAM,
}
DETECTED: Mapping[str, Field] = {"q": ONE_OR_MORE_TEXTS}
FILE_FIELDS = ("columns", "fields")  # which texts of a file are translated, in formats that have several
IN_FILES: Mapping[str, Field] = {
    **LANGUAGES,
    "format": Field(),
    **dict.fromkeys(FILE_FIELDS, Field(ListOf(Text()))),
    "encoding": Field(Text(), blank=True),
    "stream": STREAM,
    "file": Field(File(), required="a file as multipart/form-data"),
}


async def read_request(request: Request, table: Mapping[str, Field]) -> dict[str, Any]:
    """Return the values in a JSON object, a form or the query string, and check the token. Raises `ServerError`.

    As in LibreTranslate, unknown fields are ignored, because clients send fields of other versions.
    """
    max_body = request.app.state.service.limits.max_body
    sent = await read_fields(request, max_body, JSON, FORM, MULTIPART, in_query=table)
    if isinstance(sent, list):
        token = "".join(part.content.decode(errors="replace") for part in sent if part.name == "api_key")
    else:
        token = str(sent.get("api_key") or "")
    require_token(request.scope, token)
    return parse_fields(sent, table, ignores_unknown=True)


def text_translator(request: Request, *, with_documents: bool = False) -> Translator:
    """Return the translator. Raises `ServerError` if the server is not ready or has a speech model.

    with_documents: Whether to require the optional subpackage documents/, which divides texts into parts.
    """
    translator: Translator = request.app.state.translator
    translator.service.require_text()
    if with_documents and not has_subpackage("documents"):
        raise ServerError(501, "translations require the subpackage documents, which is not installed on this server")
    return translator


async def translate(request: Request) -> Response:
    translator = text_translator(request, with_documents=True)
    fields = await read_request(request, translator.fields(FIELDS))
    texts = given_texts(fields)
    request.scope["prompts"] = [each.text for each in texts]
    shape = of_one if isinstance(fields["q"], str) else dict[str, Any]
    with ExitStack() as held:
        translation = await translator.open(request, texts, fields, held)

        def content() -> dict[str, Any]:
            found = translation.fields()
            if fields.get("alternatives"):  # the server computes only one translation
                found["alternatives"] = [[] for _ in texts]
            return shape(found)

        is_streamed = fields.get("stream", False)
        return await translation.respond(request, held, content, is_streamed, lambda new: shape({"delta": new}))


def of_one(content: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Convert the response fields for a list of one text to those for a single text."""
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
    text = q if isinstance(q, str) else "\n".join(q)
    request.scope["prompts"] = [text]
    translator.detector.require_installed("q")
    codes = [*translator.languages.targets]
    return JSONResponse(await in_thread(request, lambda: translator.detector.detect(text, codes)))


async def suggest(request: Request) -> Response:
    """Refuse a suggestion for a better translation, as LibreTranslate does if suggestions are disabled."""
    text_translator(request)
    raise ServerError(403, "suggestions are disabled on this server")


async def languages(request: Request) -> Response:
    return JSONResponse(text_translator(request).languages.listed)


async def frontend_settings(request: Request) -> Response:
    """Return the settings that user interfaces need, in LibreTranslate's format."""
    translator = text_translator(request)
    listed = translator.languages.listed
    needs_token = request.app.state.settings.token is not None
    formats: list[str] = []
    fields: dict[str, str] = {}
    if has_subpackage("documents"):
        from ..documents.formats import BY_SUFFIX
        from ..documents.options import FORMATS_OF

        formats = [*BY_SUFFIX]
        fields = {suffix: name for name in FILE_FIELDS for suffix in formats if BY_SUFFIX[suffix] in FORMATS_OF[name]}
    return JSONResponse(
        {
            "apiKeys": needs_token,
            "keyRequired": needs_token,
            "charLimit": translator.service.limits.max_body,
            "fileFields": fields,
            "filesTranslation": bool(formats),
            "frontendTimeout": 500,
            "language": default_languages(listed),
            "languageDetection": translator.detector.is_installed,
            "suggestions": False,
            "supportedFilesFormat": formats,
        }
    )


def default_languages(listed: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the languages that a user interface shows first: the first pair, from English if possible."""
    pairs = [(source["code"], target) for source in listed for target in source["targets"] if target != source["code"]]
    if not pairs:
        return {}
    source, target = next((pair for pair in pairs if pair[0] == "en"), pairs[0])
    names = {each["code"]: each["name"] for each in listed}
    return {field: {"code": code, "name": names[code]} for field, code in (("source", source), ("target", target))}


AUTO = "auto"
Result = TypeVar("Result")


@dataclass
class Translator:
    """Translates texts for the clients of a server."""

    service: Service
    prefixes: Pairs
    detector: Detector = field(default_factory=Detector)

    @cached_property
    def languages(self) -> Languages:
        """The languages of the model. Available once the service is ready."""
        return Languages(self.service.session.tokenizer, self.prefixes)

    def fields(self, table: Mapping[str, Field]) -> Mapping[str, Field]:
        """Return a table of fields without languages if the model has none: each source is then a prompt."""
        return table if self.languages.targets else {**table, **dict.fromkeys(LANGUAGES, NO_LANGUAGE)}

    async def open(
        self, request: Request, texts: Sequence[Document], fields: Mapping[str, Any], held: ExitStack
    ) -> Translation:
        """Admit texts. Raises `ServerError`.

        Args:
            request: The request.
            texts: The texts.
            fields: The fields `source` and `target`, both of which are missing if the model has no languages. `AUTO`
                detects the language of each text.
            held: Releases the memory of the texts when it exits.
        """
        upload = held.enter_context(self.service.upload(self.service.limits.max_body))
        with self.service.opening(upload):
            upload.add(sum(len(each.text) for each in texts))
            beginning = self._begin(request, texts, fields.get("source", ""), fields.get("target", ""))
            item, found = await cancel_on_disconnect(request.receive, upload.unless_failed(beginning))
        return Translation(self.service, texts, item, found, upload)

    async def _begin(
        self, request: Request, texts: Sequence[Document], source: str, target: str
    ) -> tuple[ClientText, list[Detection]]:
        """Detect languages, and start reading all texts that are not already in the target language."""
        try:
            found = await self._detected(request, texts, target) if source.lower() == AUTO else []
            chosen = [each["language"] for each in found] or [source] * len(texts)
            others = [each for each in dict.fromkeys(chosen) if not self.languages.is_same(each, target)]
            prompting = {language: self._prompting(language, target) for language in others}
            begun = []
            for text, language in zip(texts, chosen, strict=True):
                if language in prompting:
                    text.begin(prompting[language])
                    begun.append(text)
        except InputError as error:
            raise ServerError.of(error, subject="q") from None
        address = client_address(request)
        item = ClientText(begun, partial(self.service.reading.run, address), self.service.wake, address)
        await asyncio.wrap_future(item.read_ahead())
        return item, found

    async def _detected(self, request: Request, texts: Sequence[Document], target: str) -> list[Detection]:
        """Return the most likely language of each text, which may be the target language."""
        self.detector.require_installed("source")
        codes = self.languages.into(target)
        return await in_thread(request, lambda: [self.detector.detect(each.sample(), codes)[0] for each in texts])

    def _prompting(self, source: str, target: str) -> Prompting:
        from .documents import Prompting

        prefix, options = self.languages.pair(source, target) if target else ("", {})
        session, limits = self.service.session, self.service.limits
        most = limits.max_output_tokens if session.model.max_positions is None else session.model.max_positions
        tokens = min(limits.max_output_tokens, most)
        defaults = replace(self.service.options, max_tokens=tokens, src_lang=None, tgt_lang=None)
        return Prompting(prefix, defaults.override_for_row(options), session, limits, (source, target))


async def in_thread(request: Request, work: Callable[[], Result]) -> Result:
    """Run work that may take a long time, such as reading a megabyte of text, in the reading threads."""
    service: Service = request.app.state.service

    def steps() -> Generator[None, None, Result]:
        yield from ()
        return work()

    return await asyncio.wrap_future(service.reading.run(client_address(request), steps()))
