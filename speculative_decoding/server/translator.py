"""Translates the texts of a request: chooses their languages, admits the request, and reads and decodes all texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from ..errors import InputError
from .bodies import cancel_on_disconnect
from .detection import Detection, Detector
from .errors import ServerError
from .languages import Languages, Prefixes
from .service import Service
from .texts import ClientText

if TYPE_CHECKING:
    from .documents import Document, Prompting

AUTO = "auto"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Translations:
    """The translations of the texts of a request.

    Args:
        texts: The translations.
        detected: The language of each source, if it was to be detected.
        findings: What a reader should check in each translation.
    """

    texts: Sequence[str]
    detected: Sequence[Detection]
    findings: Sequence[list[dict[str, Any]]]

    def notes(self, *, is_list: bool) -> dict[str, Any]:
        """Return the fields of a response besides the translations. LibreTranslate's API has no `findings`."""
        found: dict[str, Any] = {}
        if self.detected:
            found["detectedLanguage"] = self.detected if is_list else self.detected[0]
        if any(self.findings):
            found["findings"] = self.findings if is_list else self.findings[0]
        return found


@dataclass
class Translator:
    """Translates for the clients of a server."""

    service: Service
    prefixes: Prefixes
    detector: Detector = field(default_factory=Detector)

    @cached_property
    def languages(self) -> Languages:
        """The languages of the model. The service must be ready."""
        return Languages(self.service.session.tokenizer, self.prefixes)

    async def translate(self, request: Request, texts: Sequence[Document], source: str, target: str) -> Translations:
        """Translate texts from one language, or from the detected languages if it is `AUTO`. Raises `ServerError`."""
        client = request.client.host if request.client else ""
        with self.service.upload(self.service.limits.max_body) as upload:
            with self.service.opening(upload):
                upload.add(sum(len(each.text) for each in texts))
                beginning = upload.unless_failed(self._begin(client, texts, source, target))
                item, found = await cancel_on_disconnect(request.receive, beginning)
            await cancel_on_disconnect(request.receive, self.service.decode([item], upload))
        written = {text: "".join(parts) for text, parts in item.written.items()}
        return Translations(
            [written.get(each, each.text) for each in texts],
            found,
            [each.findings() if each in written else [] for each in texts],
        )

    async def _begin(
        self, client: str, texts: Sequence[Document], source: str, target: str
    ) -> tuple[ClientText, list[Detection]]:
        """Detect the languages, and begin to read all texts that are not in the target language already."""
        try:
            found = await self._detected(client, texts, target) if source == AUTO else []
            kept = self.languages.target(target) if found else None  # the language of texts that are not translated
            chosen = [each["language"] for each in found] or [source] * len(texts)
            prompting = {language: self._prompting(language, target) for language in {*chosen} - {kept}}
            begun = []
            for text, language in zip(texts, chosen, strict=True):
                if language != kept:
                    await in_thread(self.service, client, partial(text.begin, prompting[language]))
                    begun.append(text)
        except InputError as error:
            raise ServerError.of(error, subject="q") from None
        return ClientText(begun, client), found

    async def _detected(self, client: str, texts: Sequence[Document], target: str) -> list[Detection]:
        """Return the most likely language of each text, which may be the target language."""
        self.detector.require_installed("source")
        codes = [*self.languages.into(target), self.languages.target(target)]
        return await in_thread(
            self.service, client, lambda: [self.detector.detect(each.sample(), codes)[0] for each in texts]
        )

    def _prompting(self, source: str, target: str) -> Prompting:
        from .documents import Prompting

        pair = self.languages.pair(source, target)
        session, limits = self.service.session, self.service.limits
        most = limits.max_output_tokens if session.model.max_positions is None else session.model.max_positions
        defaults = replace(self.service.options, max_tokens=min(limits.max_output_tokens, most))
        return Prompting(pair.prefix, defaults.override_for_row(pair.options), session, limits)


async def in_thread(service: Service, client: str, work: Callable[[], Result]) -> Result:
    """Run work that may take long, such as reading a text of a megabyte, in the reading threads.

    client: its address. Clients take turns.
    """

    def steps() -> Generator[None, None, Result]:
        yield from ()
        return work()

    return await asyncio.wrap_future(service.reading.run(client, steps()))
