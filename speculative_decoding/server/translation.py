"""LibreTranslate's API for texts: POST /translate and /detect, GET /languages and /frontend/settings.

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
from ..sampling.values import Bool, Int, ListOf, Text, Union
from ..subpackages import has_subpackage
from .bodies import cancel_on_disconnect, client_address
from .detection import Detection, Detector
from .errors import ServerError
from .fields import ANY_TEXT, FORM, JSON, Anything, Field, File, parse_fields, read_fields
from .guard import require_token
from .languages import Languages, english_name
from .multipart import MULTIPART
from .service import Service
from .texts import ClientText
from .translation_response import Translation

if TYPE_CHECKING:
    from .documents import Document, Prompting

FORMATS = ("text", "html")
MAX_TEXTS = 128  # of a request
LANGUAGES: Mapping[str, Field] = {
    "source": Field(Text(), required="a language, or auto", blank=True),
    "target": Field(Text(), required="a language", blank=True),
}
NO_LANGUAGE = Field(
    refused="this model has no language pairs; leave source and target out, or start the server with --translate",
    blank=True,
)
STREAM = Field(Bool(), blank=True)
OF_ALL: Mapping[str, Field] = {"api_key": Field(Anything()), "file": Field(File(), ignored=True)}
FIELDS: Mapping[str, Field] = {
    "q": Field(Union((ANY_TEXT, ListOf(ANY_TEXT))), required="a text", blank=True),
    **LANGUAGES,
    "format": Field(Text(FORMATS), blank=True),
    "alternatives": Field(Int(0), blank=True),
    "stream": STREAM,
    **OF_ALL,
}
DETECTED: Mapping[str, Field] = {"q": Field(Text(), required="a text", blank=True), **OF_ALL}
FILE = Field(File(), required="a file as multipart/form-data")
IN_FILES: Mapping[str, Field] = {
    **LANGUAGES,
    "format": Field(),
    "columns": Field(ListOf(Text())),
    "stream": STREAM,
    **OF_ALL,
    "file": FILE,
}


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
    request.scope["prompts"] = [q]
    translator.detector.require_installed("q")
    codes = [*translator.languages.targets]
    return JSONResponse(await in_thread(request, lambda: translator.detector.detect(q, codes)))


async def languages(request: Request) -> Response:
    return JSONResponse(text_translator(request).languages.listed)


async def frontend_settings(request: Request) -> Response:
    """Return the settings that user interfaces need, in LibreTranslate's format."""
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
            "languageDetection": translator.detector.is_installed,
            "suggestions": False,
            "supportedFilesFormat": formats,
        }
    )


def default_languages(listed: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the languages that a user interface shows first: the first pair, from English if possible."""
    if not listed:
        return {}
    source = next((each for each in listed if each["code"] == "en"), listed[0])
    target = source["targets"][0]
    return {
        "source": {"code": source["code"], "name": source["name"]},
        "target": {"code": target, "name": english_name(target)},
    }


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
            found = await self._detected(request, texts, target) if source == AUTO else []
            kept = self.languages.target(target) if found else None  # the language whose texts are not translated
            chosen = [each["language"] for each in found] or [source] * len(texts)
            prompting = {language: self._prompting(language, target) for language in {*chosen} - {kept}}
            begun = []
            for text, language in zip(texts, chosen, strict=True):
                if language != kept:
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
        codes = [*self.languages.into(target), self.languages.target(target)]
        return await in_thread(request, lambda: [self.detector.detect(each.sample(), codes)[0] for each in texts])

    def _prompting(self, source: str, target: str) -> Prompting:
        from .documents import Prompting

        prefix, options = self.languages.pair(source, target) if target else ("", {})
        session, limits = self.service.session, self.service.limits
        most = limits.max_output_tokens if session.model.max_positions is None else session.model.max_positions
        tokens = min(limits.max_output_tokens, most)
        defaults = replace(self.service.options, max_tokens=tokens, src_lang=None, tgt_lang=None)
        return Prompting(prefix, defaults.override_for_row(options), session, limits)


async def in_thread(request: Request, work: Callable[[], Result]) -> Result:
    """Run work that may take a long time, such as reading a megabyte of text, in the reading threads."""
    service: Service = request.app.state.service

    def steps() -> Generator[None, None, Result]:
        yield from ()
        return work()

    return await asyncio.wrap_future(service.reading.run(client_address(request), steps()))
