"""Tests admission, deadlines, streams and shutdown, with a simulated decoding thread."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from speculative_decoding import Event, GenerationOptions
from speculative_decoding.decoding.results import GenerationStats, Round
from speculative_decoding.server.client_request import ClientRequest
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.metrics import Metrics
from speculative_decoding.server.prompts import ClientPrompt
from speculative_decoding.server.service import COLLECTED_BYTES, MAX_UPLOADS, Service
from speculative_decoding.server.streams import KEEP_ALIVE_SECONDS, stream
from tests.support.waiting import ManualLoop, run_manually

LIMITS = Limits(slots=2, queue=2, max_prompts=4, max_seconds=100.0, grace=30.0)


class Thread:
    """Simulates the decoding thread: records the arguments of calls, and decodes nothing."""

    decoding = 0
    waiting = 0
    reading: Any = None

    def __init__(self) -> None:
        self.submitted: list[ClientPrompt] = []
        self.cancelled: list[ClientPrompt] = []

    def submit(self, items: list[ClientPrompt]) -> None:
        self.submitted += items

    def cancel(self, items: list[ClientPrompt]) -> None:
        self.cancelled += items

    def stop(self) -> None: ...


class World:
    """A ready service, and its decoding thread.

    Attributes:
        ended: The errors that `on_end` was called with.
    """

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.thread = Thread()
        self.metrics = Metrics()
        self.ended: list[Exception | None] = []
        self.service = Service(self.thread, LIMITS, self.metrics)  # type: ignore[arg-type]
        self.service.on_end = self.ended.append
        self.service.state = "ready"

    def ended_as(self, reason: str) -> float | None:
        return self.metrics.registry.get_sample_value("speculative_decoding_prompts_total", {"finish_reason": reason})

    def decode(self, *prompts: ClientPrompt) -> asyncio.Task[None]:
        """Send a request, and wait for its complete output."""
        return self.loop.create_task(self.service.decode(prompts))

    def streaming(self, *prompts: ClientPrompt) -> list[Any]:
        """Send a streaming request. Returns the list of the received events."""
        found: list[Any] = []

        async def read() -> None:
            events = stream(self.service, prompts, lambda item, event: {"text": item.text} if item.text else None, list)
            try:
                async for event in events:
                    found.append(event)
            except ServerError as error:
                found.append(error)

        found.append(self.loop.create_task(read()))
        return found


Test = Callable[[World], Coroutine[Any, Any, None]]


def property_test(test: Test) -> Callable[[], None]:
    """Run a test in an event loop with its own clock."""

    def run() -> None:
        run_manually(lambda loop: test(World(loop)))

    run.__doc__ = test.__doc__
    return run


def prompts(count: int) -> list[ClientPrompt]:
    return [ClientPrompt("abc", GenerationOptions()) for _ in range(count)]


def progress(item: ClientPrompt, text: str, finish_reason: str | None = None) -> None:
    """Simulate a round of a prompt."""
    request: Any = SimpleNamespace(stats=GenerationStats(prompt_tokens=3, generated_tokens=1))
    item.client.on_progress(item, Event(request, Round([2], [], 0, 0.0, finish_reason=finish_reason), [text]))


@property_test
async def test_the_queue_holds_at_its_limit_and_refuses_one_more(world: World) -> None:
    service = world.service
    items = prompts(3)
    with ExitStack() as stack:
        stack.enter_context(service.request(items))
        upload = stack.enter_context(service.upload(1000))
        assert service.admitted == 3  # a recording counts when its last byte has arrived
        stack.enter_context(service.opening(upload))
        assert service.admitted == 4
        for refused in (lambda: service.request(prompts(1)), lambda: service.upload(1000)):
            with pytest.raises(ServerError) as error, refused():
                pass
            assert (error.value.status, error.value.code) == (429, "queue_full")
            assert int((error.value.headers or {})["Retry-After"]) >= 1
        progress(items[0], "a", "stop")  # even if the client has not read it
        assert service.admitted == 3
        stack.enter_context(service.request(prompts(1)))
    assert service.admitted == 0 and world.thread.cancelled[-3:] == items


@property_test
async def test_only_a_ready_service_admits_requests(world: World) -> None:
    for state in ("loading", "stopping", "failed"):
        world.service.state = state
        for refused in (lambda: world.service.request(prompts(1)), lambda: world.service.upload(1000)):
            with pytest.raises(ServerError) as error, refused():
                pass
            assert (error.value.status, error.value.code) == (503, state)
    assert not world.thread.submitted


@property_test
async def test_a_request_fails_at_its_deadline_and_frees_its_slots(world: World) -> None:
    whole, events = world.decode(*prompts(1)), world.streaming(*prompts(1))
    await world.loop.advance(99.9)
    assert not whole.done() and len(events) == 1
    await world.loop.advance(0.2)
    with pytest.raises(ServerError, match="not finished within 100 s") as error:
        await whole
    assert (error.value.status, error.value.code) == (504, "timeout")
    assert isinstance(events[-1], ServerError) and events[-1].code == "timeout"  # before the stream starts
    assert {*world.thread.cancelled} == {*world.thread.submitted} and world.service.admitted == 0
    assert world.ended_as("error") == 2


@property_test
async def test_a_recording_has_one_deadline_from_its_arrival(world: World) -> None:
    with pytest.raises(ServerError, match="not finished"), world.service.upload(1000) as upload:
        await world.loop.advance(60)
        (item,) = prompts(1)
        with world.service.request([item], upload) as client:
            await world.loop.advance(39.9)
            assert client.error is None
            await world.loop.advance(0.2)
            assert client.error is not None
        await upload.unless_failed(asyncio.sleep(0))


@property_test
async def test_a_failed_upload_cancels_its_work(world: World) -> None:
    cancelled: list[bool] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async def finished() -> str:
        return "done"

    with pytest.raises(ServerError, match="is stopping"), world.service.upload(1000) as upload:
        assert await upload.unless_failed(finished()) == "done"
        world.loop.call_soon(world.service.abort)
        world.loop.call_soon(world.service.abort)
        await upload.unless_failed(endless())
    assert cancelled == [True]


@property_test
async def test_recordings_share_a_limit_of_memory(world: World) -> None:
    service = world.service
    with service.upload(1000) as first:
        with service.upload(1000) as second:
            first.add(MAX_UPLOADS * 1000 - 1)
            second.add(1)
            with pytest.raises(ServerError) as error:
                first.add(1)
            assert (error.value.status, error.value.code) == (429, "queue_full")
        first.add(1)  # the memory of the second upload is free


@property_test
async def test_the_memory_of_a_large_recording_is_collected_at_its_end(world: World) -> None:
    """The frames may be part of a reference cycle, which Python would collect at an unknown later time."""

    class Cycle:
        def __init__(self) -> None:
            self.own = self

    gc.disable()
    try:
        for size, is_collected in ((COLLECTED_BYTES - 1, False), (COLLECTED_BYTES, True)):
            found = weakref.ref(Cycle())
            with world.service.upload(COLLECTED_BYTES) as upload:
                upload.add(size)
            await world.loop.advance()
            assert (found() is None) == is_collected
    finally:
        gc.enable()


@property_test
async def test_a_stream_sends_what_is_ready_and_keeps_its_connection_open(world: World) -> None:
    items = prompts(2)
    events = world.streaming(*items)
    await world.loop.advance()
    items[0].client.on_queued()
    await world.loop.advance(60)
    assert len(events) == 1  # an error of the second prompt could still set the status
    items[1].client.on_queued()
    await world.loop.advance()
    assert events[1:] == [None]
    progress(items[0], "")
    progress(items[0], "a")
    await world.loop.advance(KEEP_ALIVE_SECONDS - 0.1)
    assert events[2:] == [{"text": "a"}]
    await world.loop.advance(0.2)
    assert events[3:] == [None]
    progress(items[1], "b", "stop")
    progress(items[0], "c", "length")
    await world.loop.advance()
    assert events[4:] == [{"text": "b"}, {"text": "ac"}, "[DONE]"] and events[0].done()
    assert world.ended_as("stop") == world.ended_as("length") == 1
    name = "speculative_decoding_time_to_first_token_seconds_count"
    assert world.metrics.registry.get_sample_value(name) == 2


@property_test
async def test_an_error_after_the_start_of_a_stream_is_its_last_event(world: World) -> None:
    items = prompts(2)
    events = world.streaming(*items)
    await world.loop.advance()
    for item in items:
        item.client.on_queued()
    progress(items[0], "a", "stop")
    await world.loop.advance()
    items[1].client.fail(ServerError(500, "planted", code="planted"))
    progress(items[1], "late")  # scheduled before the failure
    await world.loop.advance()
    assert events[2:] == [{"text": "a"}, ServerError(500, "planted", code="planted").content] and events[0].done()
    errors = "speculative_decoding_errors_total"
    assert world.metrics.registry.get_sample_value(errors, {"code": "planted"}) == 1
    assert world.ended_as("stop") == world.ended_as("error") == 1


@property_test
async def test_a_client_that_leaves_cancels_its_prompts(world: World) -> None:
    items = prompts(2)
    leaving = world.decode(*items)
    await world.loop.advance()
    progress(items[0], "a", "stop")
    await world.loop.advance()
    leaving.cancel()
    await world.loop.advance()
    assert world.thread.cancelled == [items[1]] and world.ended_as("cancelled") == 1


@property_test
async def test_a_blank_prompt_needs_no_decoding(world: World) -> None:
    items = [ClientPrompt(text, GenerationOptions()) for text in ("", "abc", " \n")]
    whole = world.decode(*items)
    await world.loop.advance()
    assert world.thread.submitted == [items[1]] and world.service.admitted == 1
    progress(items[1], "a", "stop")
    await whole
    assert [item.text for item in items] == ["", "a", ""]
    await world.service.decode([ClientPrompt("", GenerationOptions())])


@property_test
async def test_a_shutdown_waits_for_the_admitted_requests(world: World) -> None:
    items = prompts(1)
    whole = world.decode(*items)
    await world.loop.advance()
    with world.service.upload(1000) as upload:
        draining = world.loop.create_task(world.service.drain())
        await world.loop.advance(10)
        await world.service.drain()  # a second call has no effect
        progress(items[0], "a", "stop")
        await world.loop.advance()
        assert whole.done() and not draining.done() and not world.ended
        with world.service.opening(upload), world.service.request(prompts(1), upload):
            assert world.service.admitted == 2  # the recording has arrived completely
    await draining
    assert world.ended == [None]


@property_test
async def test_requests_fail_when_the_grace_period_ends(world: World) -> None:
    whole = world.decode(*prompts(1))
    draining = world.loop.create_task(world.service.drain())
    await world.loop.advance(29.9)
    assert not whole.done()
    await world.loop.advance(0.2)
    with pytest.raises(ServerError) as error:
        await whole
    await draining
    assert (error.value.status, error.value.code) == (503, "stopping") and world.ended == [None]


@property_test
async def test_all_requests_fail_when_the_thread_ends_with_an_error(world: World) -> None:
    whole = world.decode(*prompts(1))
    await world.loop.advance()
    world.service._on_thread_end(None)  # after `stop`
    assert not world.ended and world.service.state == "ready"
    world.service._on_thread_end(problem := MemoryError("planted"))
    with pytest.raises(ServerError) as error:
        await whole
    assert (error.value.status, error.value.code) == (500, "failed") and "planted" not in error.value.message
    assert world.ended == [problem] and world.service.state == "failed"


@property_test
async def test_a_service_that_was_stopped_while_loading_does_not_become_ready(world: World) -> None:
    session: Any = SimpleNamespace(options_with=lambda options: GenerationOptions())
    for state, expected in (("loading", "ready"), ("stopping", "stopping")):
        world.service.state = state
        world.service._on_ready(session)
        assert world.service.state == expected
    world.service.stop()


@property_test
async def test_a_client_that_waits_for_the_queue_gets_the_refusal(world: World) -> None:
    client = ClientRequest(prompts(2))
    waiting = world.loop.create_task(client.wait_until_queued())
    client.on_queued()
    client.fail(ServerError(400, "planted"))
    with pytest.raises(ServerError, match="planted"):
        await waiting
    progress(client.items[0], "late", "stop")  # scheduled before the failure
    assert client.unfinished == 0
