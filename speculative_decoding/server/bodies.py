"""Reads request bodies within limits, and stops the work on a response if the client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from .errors import ServerError

BODY_SECONDS = 30.0  # time limit for receiving a body
LIBRETRANSLATE = ("/translate", "/translate_file", "/detect", "/languages", "/frontend/settings")
DOWNLOADS = "/download_file/"  # prefix of paths whose last part is a secret file name
Result = TypeVar("Result")


async def read_body(
    request: Request,
    max_bytes: int,
    *,
    seconds: float = BODY_SECONDS,
    count: Callable[[int], None] = lambda size: None,
) -> bytes:
    """Read the body of a request. Raises `ServerError` as soon as a limit is exceeded.

    Args:
        request: The request.
        max_bytes: The maximum size of the body.
        seconds: The time limit.
        count: Called with the size of each received chunk. May raise `ServerError`.
    """
    error = ServerError(413, f"the body must have at most {max_bytes} bytes", code="body_too_large")
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise error
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                count(len(chunk))
                body += chunk
                if len(body) > max_bytes:
                    raise error
    except TimeoutError:
        headers = {"Connection": "close"}
        raise ServerError(408, f"the body was not received within {seconds:g} s", headers=headers) from None
    return bytes(body)


def client_address(request: Request) -> str:
    return request.client.host if request.client else ""


async def cancel_on_disconnect(receive: Receive, work: Awaitable[Result], seconds: float | None = None) -> Result:
    """Return the result of `work`, or cancel `work` if the client disconnects or the time limit is reached.

    Args:
        receive: Receives the connection's messages, once the body has been read.
        work: The awaitable to run.
        seconds: The time limit.

    Raises:
        ClientDisconnect: The client has disconnected.
        TimeoutError: The time limit is reached.
    """

    async def disconnect() -> Exception:
        while (await receive())["type"] != "http.disconnect":
            pass
        return ClientDisconnect()

    return await cancel_on(disconnect(), work, seconds)


async def cancel_on(
    interruption: Awaitable[Exception], work: Awaitable[Result], seconds: float | None = None
) -> Result:
    """Return the result of `work`, unless `interruption` ends first; then cancel `work` and raise an error.

    Args:
        interruption: Returns the error to raise. Cancelled when `work` ends.
        work: The awaitable to run.
        seconds: The time limit. A `TimeoutError` is raised when it is reached.
    """
    working, interrupting = asyncio.ensure_future(work), asyncio.ensure_future(interruption)
    try:
        await asyncio.wait({working, interrupting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if interrupting.done():
            raise interrupting.result()
        if working.done():
            return working.result()
        raise TimeoutError
    finally:
        for task in (working, interrupting):
            task.cancel()
        await asyncio.gather(working, interrupting, return_exceptions=True)
        # The tasks' exceptions refer to this frame, so these variables would keep the request alive until garbage
        # collection.
        del task, working, interrupting


def is_libretranslate(path: str) -> bool:
    """Return whether a path belongs to LibreTranslate's API."""
    return path in LIBRETRANSLATE or path.startswith(DOWNLOADS)


def error_response(path: str, error: ServerError) -> JSONResponse:
    """Return an error response in the format of the API that the path belongs to."""
    content = libretranslate_error(error) if is_libretranslate(path) else error.content
    return JSONResponse(content, error.status, dict(error.headers or {}))


def libretranslate_error(error: ServerError) -> dict[str, str]:
    return {"error": error.message}


class EventStream(StreamingResponse):
    """A response that sends each server-sent event as soon as it is available.

    Args:
        events: The contents of the `data:` lines. For None, a comment is sent, to keep the connection open.
        seconds: The time limit of the request. The connection is closed 30 seconds later, even if a slow client has not
            read all events.
        held: Resources to release after the last event.
    """

    def __init__(
        self,
        events: AsyncGenerator[Mapping[str, Any] | str | None],
        seconds: float,
        held: ExitStack | None = None,
    ) -> None:
        lines = (event_line(event) async for event in events)
        super().__init__(lines, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._events = events
        self._seconds = seconds
        self._held = held or ExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            try:
                await cancel_on_disconnect(receive, self.stream_response(send), self._seconds + 30.0)
            except (ClientDisconnect, TimeoutError, OSError):
                pass  # the client can no longer receive an error
            finally:
                await self._events.aclose()


def event_line(event: Mapping[str, Any] | str | None) -> str:
    if event is None:
        return ": waiting\n\n"
    text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n"
