"""Tests limits of bodies, and that work stops if the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from speculative_decoding.server.bodies import (
    BODY_SECONDS,
    EventStream,
    cancel_on_disconnect,
    read_body,
)
from speculative_decoding.server.errors import ServerError
from tests.support.waiting import ManualLoop, run_manually

LIMIT = 20_000


def request(chunks: Sequence[bytes], media_type: str = "application/json", length: int | None = None) -> Request:
    """Return a request whose body arrives in these chunks. The last chunk ends the body."""
    left: Iterator[bytes] = iter(chunks)
    count = len(chunks)

    async def receive() -> Any:
        nonlocal count
        count -= 1
        if (chunk := next(left, None)) is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunk, "more_body": count > 0}

    headers = [(b"content-type", media_type.encode())]
    headers += [] if length is None else [(b"content-length", str(length).encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


@pytest.mark.parametrize(("size", "status"), [(LIMIT, None), (LIMIT + 1, 413)])
@pytest.mark.parametrize("announced", [False, True])
def test_a_body_is_refused_as_soon_as_it_is_known_to_be_too_large(
    size: int, status: int | None, announced: bool
) -> None:
    """A Content-Length above the limit is refused without reading. Otherwise, reading ends at the first excess byte."""
    counted: list[int] = []
    sent = [] if announced and status else [b"a" * (size - 1), b"a"] + ([b"never read"] if status else [])
    reading = read_body(request(sent, length=size if announced else None), LIMIT, count=counted.append)
    if status is None:
        assert asyncio.run(reading) == b"a" * size and sum(counted) == size
    else:
        with pytest.raises(ServerError) as error:
            asyncio.run(reading)
        assert (error.value.status, error.value.code) == (status, "body_too_large")
        assert sum(counted) == (0 if announced else size)


def test_a_body_has_one_time_limit_however_it_drips() -> None:
    async def test(loop: ManualLoop) -> None:
        slow: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        reading = asyncio.ensure_future(read_body(Request(request([]).scope, slow.get), LIMIT))
        for _ in range(3):
            slow.put_nowait({"type": "http.request", "body": b"a", "more_body": True})
            await loop.advance(BODY_SECONDS / 3 - 0.1)
        assert not reading.done()
        await loop.advance(0.4)
        with pytest.raises(ServerError, match="within 30 s") as error:
            await reading
        assert error.value.status == 408 and error.value.headers == {"Connection": "close"}

    run_manually(test)


@pytest.mark.parametrize(
    ("event", "expected"), [("disconnect", ClientDisconnect), ("time", TimeoutError), ("end", None)]
)
def test_work_is_cancelled_on_a_disconnect_or_at_the_time_limit(event: str, expected: type[Exception] | None) -> None:
    async def test(loop: ManualLoop) -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        may_end = asyncio.Event()
        ended: list[str] = []

        async def work() -> str:
            try:
                await may_end.wait()
                return "done"
            finally:
                ended.append("ended")

        waiting = asyncio.ensure_future(cancel_on_disconnect(messages.get, work(), 10.0))
        messages.put_nowait({"type": "http.request"})  # for example, the end of the body
        await loop.advance(9.9)
        assert not waiting.done()
        if event == "disconnect":
            messages.put_nowait({"type": "http.disconnect"})
        elif event == "end":
            may_end.set()
        await loop.advance(0.2 if event == "time" else 0)
        assert waiting.done() and ended == ["ended"] and len(asyncio.all_tasks()) == 1
        if expected is None:
            assert await waiting == "done"
        else:
            with pytest.raises(expected):
                await waiting

    run_manually(test)


@pytest.mark.parametrize("end", ["last", "disconnect", "time", "broken"])
def test_a_stream_releases_its_resources_however_it_ends(end: str) -> None:
    """A comment keeps the connection open while there are no events. A client that does not read is disconnected."""

    async def test(loop: ManualLoop) -> None:
        sent, released = list[bytes](), list[str]()
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        async def events() -> AsyncGenerator[Any]:
            try:
                yield {"a": "é"}
                yield None
                yield "[DONE]"
            finally:
                released.append("events")

        async def send(message: Any) -> None:
            if end == "broken" and sent:
                raise OSError("broken pipe")
            if end in ("disconnect", "time") and b"waiting" in b"".join(sent):
                await asyncio.Event().wait()  # the client stops reading
            sent.append(message.get("body", b"head"))

        held = ExitStack()
        held.callback(released.append, "held")
        source = events()
        await anext(source)  # like `completions`, where an early error sets the status
        stream = EventStream(source if end != "last" else events(), 10.0, held)
        responding = asyncio.ensure_future(stream({"type": "http"}, messages.get, send))
        await loop.advance(39.9)
        if end == "disconnect":
            messages.put_nowait({"type": "http.disconnect"})
        await loop.advance(0.2 if end == "time" else 0.0)
        await responding
        assert released[-2:] == ["events", "held"]
        if end == "last":
            assert b"".join(sent) == 'headdata: {"a":"é"}\n\n: waiting\n\ndata: [DONE]\n\n'.encode()

    run_manually(test)
