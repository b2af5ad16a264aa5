"""Tests live speech over a WebSocket, with OpenAI's client and a real server, and with simulated sockets."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.limits import MAX_LIVE_AUDIO, Limits
from speculative_decoding.server.live_streams import ClientStream
from speculative_decoding.server.metrics import Metrics
from speculative_decoding.server.model_names import ModelNames
from speculative_decoding.server.realtime import MAX_UNREAD, Connection
from speculative_decoding.server.realtime_audio import FORMATS, PCM, AudioFormat
from speculative_decoding.server.realtime_format import MAX_EVENT
from speculative_decoding.server.service import Service
from speculative_decoding.server.sockets import HALF_CLOSED
from speculative_decoding.speech.live import resampler
from speculative_decoding.speech.live.resampler import Resampler
from speculative_decoding.speech.live.update import LiveUpdate
from tests.support.serving import Serving, drain, held, serving
from tests.support.speech import Letters, speech_model
from tests.support.tiny import tiny_model
from tests.support.together import Letters as TextLetters
from tests.support.waiting import ManualLoop, eventually, run_manually

if TYPE_CHECKING:  # the import takes a second
    from openai import OpenAI
    from openai.resources.realtime.realtime import RealtimeConnection

TARGET = speech_model(0)
mx.eval(TARGET.parameters())  # before the decoding thread uses them
MODEL = "tiny-whisper"
LIMITS = Limits(slots=1, max_live_seconds=5.0)
IDLE = LIMITS.max_idle
HYPOTHESES = {"type": "transcription", "hypotheses": True}
COMPLETED = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"
FAILED = "conversation.item.input_audio_transcription.failed"


def session(drafter: str = "ngram") -> Session:
    return Session(TARGET, Letters(), None, GenerationOptions(drafter=drafter, num_draft_tokens=3))


def speech(seed: int, seconds: float) -> bytes:
    """Return PCM at 24 kHz."""
    return np.random.default_rng(seed).normal(scale=3000, size=int(seconds * PCM.rate)).astype("<i2").tobytes()


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(session(), LIMITS, model=MODEL) as made:
        yield made


def client_of(server: Serving) -> OpenAI:
    import openai

    websocket_url = f"{server.url.replace('http', 'ws')}/v1"  # the beta client does not derive it from the base URL
    return openai.OpenAI(base_url=f"{server.url}/v1", websocket_base_url=websocket_url, api_key="none", max_retries=0)


def say(connection: RealtimeConnection, pcm: bytes) -> None:
    connection.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())


def receive(connection: RealtimeConnection, event_type: str) -> list[Any]:
    """Return the events up to the first event of a type."""
    found = [connection.recv()]
    while found[-1].type != event_type:
        assert found[-1].type != "error", found[-1]
        found.append(connection.recv())
    return found


def test_the_text_of_openais_client_equals_transcribe_live(server: Serving) -> None:
    """Each piece of speech is sent when the hypotheses for the previous piece have been received."""
    own = [speech(seed, 1.12) for seed in range(3)]
    previous = None
    with client_of(server) as client, client.realtime.connect(model="whisper-1") as connection:
        connection.session.update(session=cast(Any, HYPOTHESES))
        for pieces in (own, own[:1]):
            texts = []
            for pcm, hypotheses in zip(pieces, (1, 2, 2), strict=False):
                say(connection, pcm)
                texts += [receive(connection, DELTA)[-1].delta for _ in range(hypotheses)]
            connection.input_audio_buffer.commit()
            events = receive(connection, COMPLETED)
            texts += [event.delta for event in events if event.type == DELTA]
            (committed,) = (event for event in events if event.type == "input_audio_buffer.committed")
            assert committed.previous_item_id == previous
            previous = events[-1].item_id
            assert events[-1].usage.seconds == pytest.approx(1.12 * len(pieces))
            assert "".join(texts) == events[-1].transcript == expected(pieces) != ""


def expected(pieces: list[bytes], audio_format: AudioFormat = PCM, **options: Any) -> str:
    own = Resampler(audio_format.rate)
    chunks = [*(own.append(audio_format.samples(audio)) for audio in pieces), own.finish()]
    updates = session("none").transcribe_live(chunks, reads_ahead=False, **options)
    return "".join(update.final for update in updates).lstrip()


def telephone(seed: int, seconds: float) -> bytes:
    """Return random bytes, which are loud noise in G.711."""
    return np.random.default_rng(seed).bytes(int(seconds * 8000))


@pytest.mark.parametrize("audio_format", FORMATS[1:], ids=lambda each: each.name)
@pytest.mark.parametrize("is_older", [False, True], ids=["current", "beta"])
def test_openais_client_sends_g711(server: Serving, audio_format: AudioFormat, is_older: bool) -> None:
    """The text equals the text of the decoded audio."""
    audio = telephone(0, 1.12)
    with client_of(server) as client:
        if is_older:
            connected = client.beta.realtime.connect(model="whisper-1", extra_query={"intent": "transcription"})
        else:
            connected = client.realtime.connect(extra_query={"intent": "transcription"})
        with cast(Any, connected) as connection:
            receive(connection, "session.created")
            if is_older:
                session = {
                    "input_audio_format": audio_format.older_name,
                    "input_audio_transcription": {"model": "whisper-1", "language": "de", "prompt": ""},
                    "turn_detection": None,
                    "hypotheses": True,
                }
                connection.transcription_session.update(session=session)
                updated = receive(connection, "transcription_session.updated")[-1].session
                assert updated.input_audio_format == audio_format.older_name
                assert updated.input_audio_transcription.language == "de"
            else:
                transcription = {"model": "whisper-1", "language": "de"}
                own = {"input": {"format": {"type": audio_format.name}, "transcription": transcription}}
                connection.session.update(session=HYPOTHESES | {"audio": own})
                updated = receive(connection, "session.updated")[-1].session
                assert updated.audio.input.format.type == audio_format.name
            say(connection, audio)
            receive(connection, DELTA)
            connection.input_audio_buffer.commit()
            completed = receive(connection, COMPLETED)[-1]
    assert completed.transcript == expected([audio], audio_format, language="de") != ""
    assert completed.usage.seconds == pytest.approx(1.12)


def test_an_event_may_have_as_much_audio_as_in_openais_api(server: Serving) -> None:
    """This server takes less speech at a time. The socket stays usable."""
    with client_of(server) as client, client.realtime.connect() as connection:
        receive(connection, "session.created")
        say(connection, bytes(MAX_LIVE_AUDIO))
        assert receive(connection, FAILED)[-1].error.code == "too_much_audio"
        assert connection.recv().error.code == "too_much_audio"  # type: ignore[union-attr]
        connection.input_audio_buffer.clear()
        say(connection, speech(0, 0.5))
        connection.input_audio_buffer.commit()
        assert receive(connection, COMPLETED)[-1].usage.seconds == pytest.approx(0.5)


def test_a_client_that_vanishes_frees_its_slot(server: Serving) -> None:
    """Until the slot is free, other clients get an error, and their connections stay usable."""
    with client_of(server) as client, client.realtime.connect() as other:
        with client.realtime.connect() as vanishing:
            say(vanishing, speech(0, 0.5))
            eventually(lambda: server.thread.decoding == 1)
            receive(other, "session.created")
            say(other, speech(0, 0.5))
            assert other.recv().error.code == "too_many_streams"  # type: ignore[union-attr]
            other.input_audio_buffer.clear()
            receive(other, "input_audio_buffer.cleared")
        eventually(lambda: server.thread.decoding == server.service._live_slots == 0)
        say(other, speech(0, 0.5))
        other.input_audio_buffer.commit()
        receive(other, COMPLETED)
    eventually(lambda: server.metric("prompts_total", finish_reason="cancelled") == 1)
    assert server.metric("errors_total", code="too_many_streams") == 1


REFUSED = [("model=gpt-realtime", 404, "model"), ("intent=chat", 400, "intent"), ("call_id=1", 400, "call_id")]


@pytest.mark.parametrize(("query", "status", "param"), REFUSED)
def test_an_address_that_cannot_be_used_is_refused_before_the_socket_is_accepted(
    server: Serving, query: str, status: int, param: str
) -> None:
    assert refusal(server, query) == (status, param)


def test_a_text_model_refuses_the_socket() -> None:
    with serving(Session(tiny_model(), TextLetters(), options=GenerationOptions(drafter="none")), LIMITS) as other:
        assert refusal(other, "") == (404, None)


def refusal(server: Serving, query: str) -> tuple[int, str | None]:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    with pytest.raises(InvalidStatus) as raised:
        connect(f"{server.url.replace('http', 'ws')}/v1/realtime?{query}")
    response = raised.value.response
    return response.status_code, json.loads(response.body or b"")["error"]["param"]


def test_a_stopping_server_finishes_what_was_said() -> None:
    from websockets.exceptions import ConnectionClosed

    with serving(session(), LIMITS, model=MODEL) as server:
        with client_of(server) as client, client.realtime.connect() as busy, client.realtime.connect() as idle:
            say(busy, speech(0, 0.5))
            eventually(lambda: server.thread.decoding == 1)
            drain(server)
            assert receive(busy, COMPLETED)[-1].transcript
            receive(idle, "session.created")
            for connection in (busy, idle):
                with pytest.raises(ConnectionClosed) as closed:
                    connection.recv()
                assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
        eventually(lambda: server.ended == [None])


def test_what_is_not_finished_in_the_grace_period_fails() -> None:
    with held(session(), replace(LIMITS, grace=0.0), model=MODEL) as (server, gated):
        with client_of(server) as client, client.realtime.connect() as connection:
            say(connection, speech(0, 0.5))
            eventually(lambda: server.thread.decoding == 1)
            drain(server)
            failed = receive(connection, FAILED)[-1]
            assert failed.error.code == "stopping"
        gated.allow()
        eventually(lambda: server.ended == [None])


def test_a_round_that_fails_ends_the_items_in_progress_only() -> None:
    with (
        held(session(), LIMITS, model=MODEL) as (server, gated),
        client_of(server) as client,
        client.realtime.connect() as connection,
    ):
        gated.failures = 1
        for event_type in (FAILED, COMPLETED):
            say(connection, speech(0, 0.5))
            connection.input_audio_buffer.commit()
            gated.allow()
            receive(connection, event_type)
    assert server.metric("errors_total", code="round_failed") == 1


class Thread:
    """Simulates the decoding thread, without decoding."""

    decoding = 0
    waiting = 0

    def __init__(self) -> None:
        self.submitted: list[ClientStream] = []
        self.cancelled: list[ClientStream] = []

    def submit(self, items: list[ClientStream]) -> None:
        self.submitted += items

    def cancel(self, items: list[ClientStream]) -> None:
        self.cancelled += items

    def wake(self) -> None: ...


class Socket:
    """Simulates a socket, whose client reads only while `is_reading` is set."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self.code: int | None = None

    async def receive(self) -> dict[str, Any]:
        return await self.messages.get()

    async def send_text(self, text: str) -> None:
        await self.is_reading.wait()
        self.sent.append(json.loads(text))

    async def close(self, code: int, reason: str = "") -> None:
        self.code = code

    def send(self, event_type: str, **fields: Any) -> None:
        self.messages.put_nowait({"type": "websocket.receive", "text": json.dumps({"type": event_type, **fields})})

    def say(self, seconds: float) -> None:
        audio = base64.b64encode(speech(0, seconds)).decode()
        self.send("input_audio_buffer.append", audio=audio)

    def leave(self, reason: str = "") -> None:
        self.messages.put_nowait({"type": "websocket.disconnect", "reason": reason})

    @property
    def ends(self) -> list[str]:
        """Item id -> type of the event with which the item ended."""
        return [event["type"].rpartition(".")[2] for event in self.sent if event["type"] in (COMPLETED, FAILED)]

    @property
    def committed(self) -> int:
        return [event["type"] for event in self.sent].count("input_audio_buffer.committed")

    @property
    def errors(self) -> list[str]:
        return [event["error"]["code"] for event in self.sent if event["type"] == "error"]


class World:
    """A service with a simulated decoding thread, and its clients."""

    def __init__(self, loop: ManualLoop) -> None:
        self.loop = loop
        self.thread = Thread()
        self.heard = 0
        self.service = Service(cast(Any, self.thread), LIMITS, Metrics())
        self.service.state = "ready"

    async def connect(self) -> tuple[Socket, asyncio.Task[None]]:
        socket = Socket()
        assert TARGET.audio is not None
        connection = Connection(cast(Any, socket), self.service, ModelNames(MODEL), TARGET.audio)

        async def serve() -> None:
            with self.service.socket():
                await connection.serve()

        task = self.loop.create_task(serve())
        await self.loop.advance()
        return socket, task

    async def hear_all(self) -> None:
        """Decode all committed speech, one item after another."""
        await self.loop.advance()
        while self.heard < len(self.thread.submitted):
            self.hear(self.heard, "text", is_last=True)
            self.heard += 1
            await self.loop.advance()

    def hear(self, number: int, final: str, *, is_last: bool = False) -> None:
        stream = self.thread.submitted[number]
        stream.client.on_progress(stream, LiveUpdate(final, "", 0.0, GenerationStats(), is_last=is_last))


def in_world(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_manually(lambda loop: test(World(loop)))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@in_world
async def test_a_connection_takes_one_slot_and_decodes_its_items_in_turn(world: World) -> None:
    """A server with one slot therefore accepts speech immediately after a commit."""
    (socket, _), (other, _) = await world.connect(), await world.connect()
    for _ in range(2):
        socket.say(0.2)
        socket.send("input_audio_buffer.commit")
    await world.loop.advance()
    other.say(0.2)
    await world.loop.advance()
    assert len(world.thread.submitted) == 1 and not socket.errors and other.errors == ["too_many_streams"]
    stopping = asyncio.ensure_future(world.service.drain())
    for number in range(2):
        await world.loop.advance()
        assert len(world.thread.submitted) == number + 1 and not stopping.done()
        world.hear(number, "text", is_last=True)
    await world.loop.advance()
    assert [event["type"] for event in socket.sent].count(COMPLETED) == 2
    assert stopping.done() and (socket.code, other.code) == (1001, 1001)
    assert not world.thread.cancelled and world.service._live_slots == 0


async def silence(world: World, socket: Socket) -> None:
    for _ in range(3):
        await world.loop.advance(IDLE)


async def a_stalled_client(world: World, socket: Socket) -> None:
    socket.is_reading.clear()
    await world.loop.advance(2 * IDLE)
    world.hear(0, "text", is_last=True)
    world.heard += 1
    await world.loop.advance(2 * IDLE)
    socket.is_reading.set()


async def a_stopping_server(world: World, socket: Socket) -> None:
    world.loop.create_task(world.service.drain())
    await world.loop.advance(LIMITS.grace / 2)


async def a_half_closed_connection(world: World, socket: Socket) -> None:
    socket.leave(HALF_CLOSED)
    await world.loop.advance(IDLE / 2)


async def an_update(world: World, socket: Socket) -> None:
    socket.send("session.update", session=HYPOTHESES)


async def a_clear(world: World, socket: Socket) -> None:
    socket.send("input_audio_buffer.clear")


async def further_speech_and_a_clear(world: World, socket: Socket) -> None:
    socket.say(0.2)
    socket.send("input_audio_buffer.clear")


async def too_much_further_speech(world: World, socket: Socket) -> None:
    socket.say(4.9)


async def an_unknown_event(world: World, socket: Socket) -> None:
    socket.send("response.create")


async def a_large_event(world: World, socket: Socket) -> None:
    socket.send("session.update", session={"x": "a" * (2 * MAX_EVENT)})


# The event after two commits, and the close code after the client has received its text and is idle
AFTER_COMMITS = {
    silence: 1001,
    a_stalled_client: 1001,
    a_stopping_server: 1001,
    a_half_closed_connection: 1000,
    an_update: 1001,
    a_clear: 1001,
    further_speech_and_a_clear: 1001,
    too_much_further_speech: 1001,
    an_unknown_event: 1001,
    a_large_event: 1001,
}


@pytest.mark.parametrize(("following", "code"), AFTER_COMMITS.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_committed_speech_is_decoded_and_sent_whatever_follows(following: Any, code: int) -> None:
    """The client counts as idle only after it has received its text."""

    @in_world
    async def test(world: World) -> None:
        socket, serving = await world.connect()
        for _ in range(2):
            socket.say(0.2)
            socket.send("input_audio_buffer.commit")
        await world.loop.advance()
        await following(world, socket)
        await world.loop.advance()
        assert socket.code is None and socket.committed == 2 and not serving.done()
        await world.hear_all()
        assert socket.ends.count("completed") == 2
        if not world.service.stopping.is_set() and following is not a_half_closed_connection:
            await world.loop.advance(IDLE - 1)
            assert socket.code is None
            await world.loop.advance(1)
        assert socket.code == code
        await world.loop.advance()
        assert serving.done() and not world.service._live_slots

    test()


async def full(world: World, socket: Socket) -> str:
    other, _ = await world.connect()
    other.say(0.2)
    await world.loop.advance()
    return "too_many_streams"


async def long(world: World, socket: Socket) -> str:
    socket.say(5.1)
    return "too_much_audio"


@pytest.mark.parametrize("before", [full, long])
def test_speech_that_is_not_decoded_is_refused_before_it_is_committed(before: Any) -> None:
    @in_world
    async def test(world: World) -> None:
        socket, _ = await world.connect()
        code = await before(world, socket)
        socket.say(0.2)
        await world.loop.advance()
        socket.send("input_audio_buffer.commit")
        await world.loop.advance()
        assert socket.errors == [code, code] and not socket.committed

    test()


def test_events_that_arrive_while_the_server_stops_are_refused() -> None:
    """Speech that arrived before these events is committed."""

    @in_world
    async def test(world: World) -> None:
        socket, _ = await world.connect()
        socket.say(0.2)
        await world.loop.advance()
        stopping = asyncio.ensure_future(world.service.drain())
        await world.loop.advance()
        for _ in range(3):
            socket.say(0.2)
        socket.send("input_audio_buffer.commit")
        await world.loop.advance()
        assert socket.errors == ["stopping"] * 2 and socket.committed == 1 and socket.code is None
        await world.hear_all()
        assert socket.ends == ["completed"] and socket.code == 1001 and stopping.done()

    test()


@in_world
async def test_each_item_that_is_not_decoded_in_the_grace_period_fails(world: World) -> None:
    """Items that wait for an earlier item fail, too, and all of them fail before the server ends."""
    ended: list[int] = []
    world.service.on_end = lambda error: ended.append(len(socket.ends))
    socket, _ = await world.connect()
    for _ in range(3):
        socket.say(0.2)
        socket.send("input_audio_buffer.commit")
    await world.loop.advance()
    stopping = asyncio.ensure_future(world.service.drain())
    await world.loop.advance(LIMITS.grace)
    assert socket.ends == ["failed"] * 3 and {event["error"]["code"] for event in socket.sent[-3:]} == {"stopping"}
    assert stopping.done() and ended == [3] and socket.code == 1001


@in_world
async def test_speech_without_a_commit_does_not_keep_a_socket_open(world: World) -> None:
    socket, serving = await world.connect()
    for _ in range(3):
        await world.loop.advance(IDLE - 1)
        socket.say(0.05)
    await world.loop.advance(IDLE - 1)
    assert socket.code is None
    await world.loop.advance(1)
    assert socket.code == 1001 and serving.done() and not world.service._live_slots


@in_world
async def test_speech_that_waits_is_limited(world: World) -> None:
    """The limit applies to all items of a connection together."""
    socket, _ = await world.connect()
    socket.say(3.0)
    socket.send("input_audio_buffer.commit")
    socket.say(1.9)
    await world.loop.advance()
    assert not socket.errors
    socket.say(0.3)
    await world.loop.advance()
    assert socket.errors == ["too_much_audio"] and socket.sent[-2]["type"] == FAILED
    world.hear(0, "text", is_last=True)
    await world.loop.advance()
    assert socket.sent[-1]["type"] == COMPLETED and len(world.thread.submitted) == 1
    socket.send("input_audio_buffer.clear")
    socket.say(4.9)
    await world.loop.advance()
    assert len(socket.errors) == 1 and len(world.thread.submitted) == 2


def samples_of(world: World) -> int:
    """Return the number of samples at 16 kHz in the first stream."""
    return world.thread.submitted[0]._num_kept


async def an_event_of_another_client(world: World, other: Socket) -> None:
    other.send("input_audio_buffer.clear")
    await world.loop.advance()
    assert [event["type"] for event in other.sent] == ["session.created", "input_audio_buffer.cleared"]


async def a_large_event_of_another_client(world: World, other: Socket) -> None:
    """It is handled next, because handling an event takes memory and time."""
    other.say(1.5)
    other.send("input_audio_buffer.commit")
    await world.loop.advance()
    assert len(world.thread.submitted) == 1


async def the_end_of_the_server(world: World, other: Socket) -> None:
    world.loop.create_task(world.service.drain())


async def a_failed_round(world: World, other: Socket) -> None:
    stream = world.thread.submitted[0]
    stream.client.fail(ServerError(500, "planted", code="round_failed"))


@pytest.mark.parametrize(
    "meanwhile", [an_event_of_another_client, a_large_event_of_another_client, the_end_of_the_server, a_failed_round]
)
def test_a_large_event_is_handled_in_parts(meanwhile: Any) -> None:
    """Other events are handled in between, and the server stops only after the last part."""

    @in_world
    async def test(world: World) -> None:
        world.service.limits = replace(LIMITS, slots=2, max_live_seconds=330.0)
        (socket, _), (other, _) = await world.connect(), await world.connect()
        seconds = MAX_LIVE_AUDIO / (2 * PCM.rate)
        socket.say(seconds)
        if meanwhile is not the_end_of_the_server:
            socket.send("input_audio_buffer.commit")
        await world.loop.advance()
        assert 0 < samples_of(world) < seconds * 8000 and not socket.committed
        await meanwhile(world, other)
        for _ in range(20):
            await world.loop.advance()
        if meanwhile is a_failed_round:
            assert socket.ends == ["failed"] and socket.errors == ["round_failed"] and not socket.committed
        else:
            assert samples_of(world) == pytest.approx(seconds * 16_000, abs=100) and not socket.errors
            assert socket.committed == 1 and other.committed == (meanwhile is a_large_event_of_another_client)

    test()


@in_world
async def test_a_cleared_item_is_cancelled_and_frees_its_slot(world: World) -> None:
    (socket, _), (other, _) = await world.connect(), await world.connect()
    transcription = {"prompt": "Fritz"}
    session = {"type": "transcription", "audio": {"input": {"transcription": transcription}}}
    socket.send("session.update", session=session)
    socket.say(0.2)
    socket.send("input_audio_buffer.clear")
    await world.loop.advance()
    other.say(0.2)
    await world.loop.advance()
    assert world.thread.cancelled == world.thread.submitted[:1] and not other.errors
    assert len(world.thread.submitted) == 2
    assert socket.scope["prompts"] == ["Fritz"]  # logged with --log-prompts


@pytest.mark.parametrize("stage", ["waiting", "decoding", "finishing"])
def test_a_client_may_leave_at_any_time(stage: str) -> None:
    @in_world
    async def test(world: World) -> None:
        socket, serving = await world.connect()
        if stage != "waiting":
            socket.say(0.2)
        if stage == "finishing":
            socket.send("input_audio_buffer.commit")
        await world.loop.advance()
        socket.leave()
        await world.loop.advance()
        assert serving.done() and serving.exception() is None
        assert world.thread.cancelled == world.thread.submitted and not world.service._live_slots
        await world.service.drain()

    test()


@in_world
async def test_a_client_that_does_not_read_is_disconnected_and_delays_nobody(world: World) -> None:
    world.service.limits = replace(LIMITS, slots=2)
    (slow, serving), (good, _) = await world.connect(), await world.connect()
    slow.is_reading.clear()
    for socket in (slow, good):
        socket.say(0.2)
        await world.loop.advance()
    for _ in range(12):
        for number in range(2):
            world.hear(number, "a" * (MAX_UNREAD // 10))
        await world.loop.advance()
    assert [event["type"] for event in good.sent].count(DELTA) == 12
    assert serving.done() and world.thread.cancelled == [world.thread.submitted[0]]


@in_world
async def test_binary_messages_and_failures_are_answered(world: World) -> None:
    socket, _ = await world.connect()
    socket.messages.put_nowait({"type": "websocket.receive", "bytes": b"a"})
    socket.say(0.2)
    await world.loop.advance()
    world.thread.submitted[0].client.fail(ServerError(500, "planted", code="round_failed"))
    await world.loop.advance()
    assert socket.errors == ["not_text"] and socket.sent[-1]["error"]["code"] == "round_failed"
    assert world.thread.cancelled == world.thread.submitted and not world.service._live_slots


@in_world
async def test_a_missing_package_is_one_error_for_each_item(world: World) -> None:
    socket, _ = await world.connect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampler, "find_spec", lambda name: None)
        for _ in range(2):
            for _ in range(3):
                socket.say(0.2)
            socket.send("input_audio_buffer.clear")
        await world.loop.advance()
    assert socket.errors == ["not_installed"] * 2 and "PyAV" in socket.sent[1]["error"]["message"]
    assert not world.thread.submitted and not world.service._live_slots


@in_world
async def test_a_stopping_server_waits_until_its_events_are_read(world: World) -> None:
    socket, _ = await world.connect()
    socket.is_reading.clear()
    socket.send("input_audio_buffer.clear")
    await world.loop.advance()
    stopping = asyncio.ensure_future(world.service.drain())
    await world.loop.advance()
    assert socket.code is None and not stopping.done()
    socket.is_reading.set()
    await world.loop.advance()
    assert socket.code == 1001 and stopping.done() and socket.sent[-1]["type"] == "input_audio_buffer.cleared"
