"""Translates the texts of a request: chooses their languages, admits the request, and decodes all texts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from starlette.requests import Request

from ..errors import InputError
from .bodies import cancel_on_disconnect
from .detection import Detection, Detector
from .errors import ServerError
from .languages import Languages, Prefixes
from .service import Service
from .texts import DividedText, Prompting, TextDecoder, in_thread

AUTO = "auto"


class TextSource(Protocol):
    """A text or file of a client. text: its content, which is returned if it is already in the target language."""

    @property
    def text(self) -> str: ...

    def sample(self) -> str:
        """Return words from which to detect its language."""

    def divide(self, service: Service, prompting: Prompting) -> DividedText:
        """Return its parts."""


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

    async def translate(
        self, request: Request, sources: Sequence[TextSource], source: str, target: str
    ) -> Translations:
        """Translate texts from one language, or from the detected languages if it is `AUTO`. Raises `ServerError`."""
        client = request.client.host if request.client else ""
        size = sum(len(each.text) for each in sources)
        with self.service.upload(self.service.limits.max_body) as upload, self.service.opening(upload):
            upload.add(size)
            decoder = TextDecoder(self.service, upload, client)
            working = upload.unless_failed(self._translate(decoder, sources, source, target))
            return await cancel_on_disconnect(request.receive, working)

    async def _translate(
        self, decoder: TextDecoder, sources: Sequence[TextSource], source: str, target: str
    ) -> Translations:
        try:
            found = await self._detected(decoder.client, sources, target) if source == AUTO else []
            kept = self.languages.target(target) if found else None  # the language of texts that are not translated
            chosen = [each["language"] for each in found] or [source] * len(sources)
            prompting = {language: self._prompting(language, target) for language in {*chosen} - {kept}}
            texts = {
                number: each.divide(self.service, prompting[language])
                for number, (each, language) in enumerate(zip(sources, chosen, strict=True))
                if language != kept
            }
            written = dict(zip(texts, await decoder.decode([*texts.values()]), strict=True))
        except InputError as error:
            raise ServerError.of(error, subject="q") from None
        return Translations(
            [written.get(number, each.text) for number, each in enumerate(sources)],
            found,
            [texts[number].findings() if number in texts else [] for number in range(len(sources))],
        )

    async def _detected(self, client: str, sources: Sequence[TextSource], target: str) -> list[Detection]:
        """Return the most likely language of each text, which may be the target language."""
        self.detector.require_installed("source")
        codes = [*self.languages.into(target), self.languages.target(target)]
        return await in_thread(
            self.service, client, lambda: [self.detector.detect(each.sample(), codes)[0] for each in sources]
        )

    def _prompting(self, source: str, target: str) -> Prompting:
        pair = self.languages.pair(source, target)
        session, limits = self.service.session, self.service.limits
        most = limits.max_output_tokens if session.model.max_positions is None else session.model.max_positions
        defaults = replace(self.service.options, max_tokens=min(limits.max_output_tokens, most))
        return Prompting(pair.prefix, defaults.override_for_row(pair.options), session.tokenizer)
