"""GET /v1/realtime: a WebSocket for the transcription of live speech, as in OpenAI's Realtime API."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from starlette.websockets import WebSocket

from ..errors import InputError
from ..models.whisper_tokens import AudioConfig
from .bodies import error_response
from .errors import ServerError
from .fields import parse_fields
from .live_streams import ClientStream
from .model_names import ModelNames, served_names
from .realtime_audio import AudioFormat
from .realtime_format import MAX_EVENT, QUERY
from .realtime_session import Event, RealtimeSession
from .service import Service
from .sockets import HALF_CLOSED

LOG = logging.getLogger("speculative_decoding.server")
SUBPROTOCOL = "realtime"  # browsers send the token as a second subprotocol
RESAMPLED_BYTES = 1 << 16  # size of audio that is resampled at a time, which takes 1 ms
MAX_UNREAD = 1 << 20  # maximum number of characters in the events that are queued for a client
NORMAL, AWAY = 1000, 1001  # close codes


async def realtime(socket: WebSocket) -> None:
    state = socket.app.state
    service: Service = state.service
    try:
        audio = service.require_speech()
        names = served_names(state)
        names.find(parse_fields(socket.query_params, QUERY).get("model"))
    except ServerError as error:
        service.metrics.errors.labels(error.code or error.status).inc()
        return await socket.send_denial_response(error_response(socket.url.path, error))
    with service.socket():
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
        await Connection(socket, service, names, audio).serve()


class Connection:
    """A connection, which decodes the streams of its session and sends events to the client.

    Streams are decoded one after another, so a connection uses at most one slot, even if speech follows a commit before
    the committed speech has been decoded. Unless the client disconnects, committed speech is always decoded and its
    text sent. Until then, the connection does not count as idle, and it stays open even if the server is stopping or
    the client has closed its sending side.
    """

    def __init__(self, socket: WebSocket, service: Service, names: ModelNames, audio: AudioConfig) -> None:
        self._socket = socket
        self._service = service
        self._session = RealtimeSession(self, names, audio, service.limits, self._send)
        self._tasks: dict[ClientStream, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        self._handling = asyncio.Lock()  # held while an event of the client is handled
        self._unresampled: tuple[ClientStream, bytes] | None = None  # the audio of this event
        self._slot = ExitStack()
        self._unread: asyncio.Queue[str] = asyncio.Queue()
        self._num_unread = 0
        self._is_too_slow = asyncio.Event()
        self._used_at = asyncio.get_running_loop().time()  # time of the last message in either direction

    async def serve(self) -> None:
        """Serve the client until it disconnects or is idle for too long, or until the server stops."""
        self._session.begin()
        parts = (self._read(), self._write(), self._is_too_slow.wait(), self._end_with_server(), self._end_if_idle())
        work = [asyncio.ensure_future(part) for part in parts]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            if self._is_too_slow.is_set():
                LOG.warning("a client of live speech does not read its events, and is disconnected")
        finally:
            work += self._tasks.values()
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _read(self) -> None:
        """Handle events until the client disconnects, or closes its sending side and has received all its text."""
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            self._note_use()
            async with self._handling:
                if (text := message.pop("text", None)) is None:
                    error = ServerError(400, "the message is binary; send events as text", code="not_text")
                    self._session.refuse(error)
                elif len(text) <= MAX_EVENT:
                    self._session.receive(text)
                    await self._resample()
                else:  # one event at a time, because decoding its audio takes up to 0.1 s, and memory
                    async with self._service.large_events:
                        self._session.receive(text)
                        text = None  # free memory
                        await self._resample()
            await asyncio.sleep(0)  # many messages may have arrived; let other tasks run between them
            if self._num_unread > MAX_UNREAD // 2:
                await self._unread.join()
        if message.get("reason") == HALF_CLOSED:
            self._session.drop()
            await self._end(NORMAL)

    async def _resample(self) -> None:
        """Pass the audio of the last event to its stream, in parts, so that other tasks run in between."""
        if self._unresampled is None:
            return
        (stream, audio), self._unresampled = self._unresampled, None
        for start in range(0, len(audio), RESAMPLED_BYTES):
            if stream not in self._tasks:  # its decoding has failed
                return
            stream.append(audio[start : start + RESAMPLED_BYTES])
            if len(audio) > RESAMPLED_BYTES:
                await asyncio.sleep(0)

    async def _write(self) -> None:
        while True:
            text = await self._unread.get()
            await self._socket.send_text(text)
            self._note_use()
            self._num_unread -= len(text)
            self._unread.task_done()

    async def _end_with_server(self) -> None:
        """When the server stops, commit the current speech, send all text, and close the socket."""
        await self._service.stopping.wait()
        async with self._handling:
            self._session.finish()
        await self._end(AWAY)

    async def _end_if_idle(self) -> None:
        """Close the socket if the client is idle for too long. A client that is waiting for text is not idle."""
        loop, limit = asyncio.get_running_loop(), self._service.limits.max_idle
        while (rest := self._used_at + limit - loop.time()) > 0:
            await asyncio.sleep(rest)
            if self._num_unread or self._session.has_pending_text:
                self._note_use()
        await self._socket.close(AWAY, f"no message within {limit:g} s")

    def _note_use(self) -> None:
        self._used_at = asyncio.get_running_loop().time()

    async def _end(self, code: int) -> None:
        """Close the socket after all speech has been decoded and all text has been sent."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())
        await self._unread.join()
        await self._socket.close(code)

    def _send(self, event: Event) -> None:
        """Queue an event for the client."""
        if (error := event.get("error")) is not None:
            self._service.metrics.errors.labels(error["code"] or error["type"]).inc()
        if self._num_unread > MAX_UNREAD:
            return self._is_too_slow.set()
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        self._unread.put_nowait(text)
        self._num_unread += len(text)

    def open(self, options: Mapping[str, Any], audio_format: AudioFormat) -> ClientStream:
        self._service.require_ready()
        try:
            stream = ClientStream(options, self._service.wake, audio_format)
        except InputError as error:
            raise ServerError(501, f"the server cannot resample: {error}", code="not_installed") from None
        if "initial_prompt" in options:
            self._socket.scope["prompts"] = [options["initial_prompt"]]
        if not self._tasks:
            self._slot.enter_context(self._service.live_slot())
        task = self._tasks[stream] = asyncio.ensure_future(self._decode(stream))
        task.add_done_callback(partial(self._forget, stream))
        return stream

    def append(self, stream: ClientStream, audio: bytes) -> None:
        limit = self._service.limits.max_live_seconds
        seconds = sum(each.waiting_seconds for each in self._tasks) + stream.audio_format.seconds(len(audio))
        if seconds > limit:
            problem = f"{seconds:.1f} seconds would wait to be decoded (at most {limit:g}); send it more slowly"
            raise ServerError.of_field("audio", problem, "too_much_audio", 429)
        self._unresampled = (stream, audio)

    def cancel(self, stream: ClientStream) -> None:
        stream.close()
        if stream in self._tasks:
            self._tasks[stream].cancel()

    async def _decode(self, stream: ClientStream) -> None:
        try:
            async with self._turn:
                with self._service.live(stream) as client:
                    async for found in client.progress():
                        assert found is not None  # there is no timeout
                        self._session.on_update(stream, found[1])
        except ServerError as error:
            self._session.fail(stream, error)

    def _forget(self, stream: ClientStream, task: asyncio.Task[None]) -> None:
        del self._tasks[stream]
        stream.close()
        if not self._tasks:
            self._slot.close()
        if not task.cancelled():
            task.result()
