"""Decodes the texts of an admitted request, and builds the response: JSON, or a stream of progress before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .bodies import EventStream, cancel_on_disconnect, libretranslate_error
from .client_request import Upload
from .detection import Detection
from .service import Service
from .streams import stream
from .texts import ClientText

if TYPE_CHECKING:
    from .documents import Document


@dataclass(frozen=True)
class Translation:
    """An admitted request.

    Args:
        service: Decodes the texts.
        texts: The texts of the request.
        item: The texts that are translated. The others are already in the target language.
        detected: The language of each text; empty if the request named the language.
        upload: The upload of the texts.
    """

    service: Service
    texts: Sequence[Document]
    item: ClientText
    detected: Sequence[Detection]
    upload: Upload

    def fields(self) -> dict[str, list[Any]]:
        """Return the fields of the response, each of which is a list with an item per text.

        `findings` contains the places in the output that a reader should check. LibreTranslate's API has no such field.
        """
        written = {text: "".join(parts) for text, parts in self.item.written.items()}
        fields: dict[str, list[Any]] = {
            "translatedText": [written.get(each, each.text) for each in self.texts],
            "detectedLanguage": [*self.detected],
            "findings": [each.findings() if each in written else [] for each in self.texts],
        }
        return {name: values for name, values in fields.items() if name == "translatedText" or any(values)}

    async def respond(
        self,
        request: Request,
        held: ExitStack,
        content: Callable[[], Mapping[str, Any]],
        is_streamed: bool,
        new_fields: Callable[[list[str]], Mapping[str, Any]],
    ) -> Response:
        """Decode all texts. Raises `ServerError`, but not after a stream has begun.

        Args:
            request: The request.
            held: Releases the resources of the request. A stream takes them over.
            content: Returns the content of the response, or of the last event, once all texts are decoded.
            is_streamed: Whether to stream progress.
            new_fields: Returns the other fields of an event with `progress`, given the new output for each text.
        """
        limits = self.service.limits
        if not is_streamed:
            await cancel_on_disconnect(request.receive, self.service.decode([self.item], self.upload))
            return JSONResponse(content())
        outputs = Outputs(self)

        def event(item: ClientText, progress: Any) -> Mapping[str, Any] | None:
            new = outputs.new()
            return {"progress": outputs.share(), **new_fields(new)} if any(new) else None

        events = stream(self.service, [self.item], event, lambda: [content()], self.upload, libretranslate_error)
        await cancel_on_disconnect(request.receive, anext(events))  # an error up to here sets the HTTP status
        return EventStream(events, limits.max_seconds, held.pop_all())


class Outputs:
    """The outputs of a translation that have not been sent yet."""

    def __init__(self, translation: Translation) -> None:
        self._texts = translation.texts
        self._item = translation.item
        self._sent = dict.fromkeys(translation.texts, 0)  # number of parts
        self._size = sum(len(each.text) for each in translation.item.texts)

    def new(self) -> list[str]:
        """Return the new output for each text."""
        return ["".join(self._new(each)) for each in self._texts]

    def _new(self, text: Document) -> list[str]:
        parts = self._item.written.get(text, [])[self._sent[text] :]
        self._sent[text] += len(parts)
        return parts

    def share(self) -> float:
        """Return the share of the texts' characters that are finished."""
        return round(min(sum(each.finished for each in self._item.texts) / self._size, 1), 3)
