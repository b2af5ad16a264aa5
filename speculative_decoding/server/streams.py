"""Streams the output of a request as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any

from .client_request import Item, Upload
from .errors import ServerError
from .service import Service

KEEP_ALIVE_SECONDS = 15.0


async def stream(
    service: Service,
    items: Sequence[Item],
    event_of: Callable[[Item, Any], Mapping[str, Any] | None],
    last_events: Callable[[], Iterable[Mapping[str, Any]]],
    upload: Upload | None = None,
    error_event: Callable[[ServerError], Mapping[str, Any]] = lambda error: error.content,
) -> AsyncGenerator[Mapping[str, Any] | str | None]:
    """Yield None once all items are queued, then the events of the stream.

    A `ServerError` is raised only before the first None; a later error becomes the last event. After every
    `KEEP_ALIVE_SECONDS` without an event, None is yielded again, to keep the connection open.

    Args:
        service: Decodes the items.
        items: The prompts or the recording to decode.
        event_of: Returns the event for the progress of an item, or None if there is nothing to send.
        last_events: Returns the events to send when all items are finished.
        upload: The upload of a recording or text.
        error_event: Returns the last event for an error.
    """
    with service.request(items, upload) as client:
        await client.wait_until_queued()
        yield None
        try:
            async for found in client.progress(timeout=KEEP_ALIVE_SECONDS):
                event = None if found is None else event_of(*found)
                if event is not None or found is None:
                    yield event
            for event in last_events():
                yield event
        except ServerError as error:
            service.metrics.errors.labels(error.code or error.status).inc()
            yield error_event(error)
            return
        yield "[DONE]"
