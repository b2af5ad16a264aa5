"""Translates the texts of a request: admits the request, detects languages, and reads and decodes all texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from ..errors import InputError
from ..loading.task_prefixes import Pairs
from .bodies import cancel_on_disconnect, client_address
from .detection import Detection, Detector
from .errors import ServerError
from .languages import Languages
from .service import Service
from .texts import ClientText

if TYPE_CHECKING:
    from .documents import Document, Prompting

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
        """The languages of the model. Available when the service is ready."""
        return Languages(self.service.session.tokenizer, self.prefixes)

    async def translate(
        self, request: Request, texts: Sequence[Document], source: str, target: str
    ) -> dict[str, list[Any]]:
        """Translate texts from the `source` language; `AUTO` detects the language of each text. Raises `ServerError`.

        Returns the fields of a response, with an item for each text. `findings` lists places in the output that a
        reader should check; LibreTranslate's API has no such field.
        """
        with self.service.upload(self.service.limits.max_body) as upload:
            with self.service.opening(upload):
                upload.add(sum(len(each.text) for each in texts))
                beginning = upload.unless_failed(self._begin(request, texts, source, target))
                item, found = await cancel_on_disconnect(request.receive, beginning)
            await cancel_on_disconnect(request.receive, self.service.decode([item], upload))
        written = {text: "".join(parts) for text, parts in item.written.items()}
        fields: dict[str, list[Any]] = {
            "translatedText": [written.get(each, each.text) for each in texts],
            "detectedLanguage": found,
            "findings": [each.findings() if each in written else [] for each in texts],
        }
        return {name: values for name, values in fields.items() if name == "translatedText" or any(values)}

    async def _begin(
        self, request: Request, texts: Sequence[Document], source: str, target: str
    ) -> tuple[ClientText, list[Detection]]:
        """Detect languages, and begin to read all texts that are not already in the target language."""
        try:
            found = await self._detected(request, texts, target) if source == AUTO else []
            kept = self.languages.target(target) if found else None  # the language of texts that are not translated
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
        """Return the most likely language of each text. It may be the target language."""
        self.detector.require_installed("source")
        codes = [*self.languages.into(target), self.languages.target(target)]
        return await in_thread(request, lambda: [self.detector.detect(each.sample(), codes)[0] for each in texts])

    def _prompting(self, source: str, target: str) -> Prompting:
        from .documents import Prompting

        prefix, options = self.languages.pair(source, target)
        session, limits = self.service.session, self.service.limits
        most = limits.max_output_tokens if session.model.max_positions is None else session.model.max_positions
        tokens = min(limits.max_output_tokens, most)
        defaults = replace(self.service.options, max_tokens=tokens, src_lang=None, tgt_lang=None)
        return Prompting(prefix, defaults.override_for_row(options), session, limits)


async def in_thread(request: Request, work: Callable[[], Result]) -> Result:
    """Run work that may take long, such as reading a megabyte of text, in the reading threads. Clients take turns."""
    service: Service = request.app.state.service

    def steps() -> Generator[None, None, Result]:
        yield from ()
        return work()

    return await asyncio.wrap_future(service.reading.run(client_address(request), steps()))
