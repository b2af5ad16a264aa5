"""Bodies of requests, read within a limit, and answers that end where their client is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..errors import InputError
from ..jobs.input import is_json_value, parse_json_object
from .errors import ServerError

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
LIBRETRANSLATE = ("/translate", "/languages")
READ_ON = 16  # times the limit
BODY_SECONDS = 30.0  # for all of a body to come
WRITING_SECONDS = 30.0  # for a client to take what is left of its answer
Answer = TypeVar("Answer")


async def read_object(request: Request, most: int, *, takes_form: bool = False) -> dict[str, Any]:
    """The JSON object of a request, without the fields that are null: they are not given. takes_form: also the fields
    of a form; those given several times are lists. Raises `ServerError`.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON and not (takes_form and kind == FORM):
        raise ServerError(415, f"Content-Type must be {JSON}, not {kind[:80]!r}")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            text = (await read(request, most)).decode("utf-8")
    except TimeoutError:
        closing = {"Connection": "close"}
        raise ServerError(408, f"the body did not come within {BODY_SECONDS:g} s", headers=closing) from None
    except UnicodeDecodeError as error:
        raise ServerError(400, f"the body is not UTF-8 ({error.reason}, byte {error.start + 1})") from None
    try:
        if kind == FORM:
            fields = {name: values if len(values) > 1 else values[0] for name, values in parse_qs(text).items()}
        else:
            fields = parse_json_object(text) if text.strip() else {}
    except InputError as error:
        raise ServerError(400, f"the body is {error}", code="invalid_json") from None
    except ValueError as error:  # too many fields
        raise ServerError(400, f"the form cannot be read: {error}", code="invalid_form") from None
    if not is_json_value(fields):
        raise ServerError(
            400,
            "the body is not JSON: it has half a character (a lone surrogate), NaN or Infinity",
            code="invalid_json",
        )
    return {name: value for name, value in fields.items() if value is not None}


async def read(request: Request, most: int) -> bytes:
    """Never more than `most` bytes are kept, whatever the request says of its length. Somewhat more are read, so that
    the client reads why they are refused; where it does not end, the connection does.
    """
    refused = ServerError(413, f"the body must have at most {most} bytes", code="body_too_large")
    size, body = 0, bytearray()
    async for part in request.stream():
        size += len(part)
        if size <= most:
            body += part
        elif size > READ_ON * most:
            refused.headers = {"Connection": "close"}
            break
    if size > most:
        raise refused
    return bytes(body)


async def unless_gone(receive: Receive, work: Awaitable[Answer], seconds: float | None = None) -> Answer:
    """What `work` gives. It is cancelled where the client leaves, for which `ClientDisconnect` is raised, or after so
    many seconds (`TimeoutError`). receive: behind the body.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect if leaving.done() else TimeoutError
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def refusal(path: str, error: ServerError) -> JSONResponse:
    """In the shape that the path's clients expect."""
    content = {"error": error.message} if path in LIBRETRANSLATE else error.content
    return JSONResponse(content, error.status, dict(error.headers or {}))


class EventStream(StreamingResponse):
    """Server-sent events, each written as soon as it is there; within `seconds` and some for a slow reader, who else
    would keep a connection for ever.
    """

    def __init__(self, events: AsyncGenerator[Mapping[str, Any] | str | None], seconds: float) -> None:
        """events: content of `data:` lines; None for a comment that keeps the connection open."""
        lines = (line_of(event) async for event in events)
        super().__init__(lines, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._events, self._seconds = events, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self.stream_response(send), self._seconds + WRITING_SECONDS)
        except (ClientDisconnect, TimeoutError, OSError):
            pass  # nobody is there to be told
        finally:
            await self._events.aclose()


def line_of(event: Mapping[str, Any] | str | None) -> str:
    if event is None:
        return ": waiting\n\n"
    text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n"
