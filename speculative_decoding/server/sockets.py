"""The WebSocket protocol with limits on time and memory. This module does not depend on the contents of messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame
from websockets.protocol import State
from websockets.server import ServerProtocol

from .shared_memory import SharedMemory

CHECK_SECONDS = 1.0  # interval between checks of a socket
MEMORY_STEP = 1 << 18  # shared memory is taken in multiples of this size
READ_BYTES = 1 << 12  # maximum size of a read; between reads, the event loop serves other clients
MAX_CONTROL_FRAMES = 50  # maximum number of pings and pongs from a client between two checks
MAX_FRAGMENTS = 1000  # in a message; limited because empty fragments do not count towards its size
INVALID_TEXT, POLICY, TOO_BIG, TRY_AGAIN = 1007, 1008, 1009, 1013  # close codes (RFC 6455, section 7.4; IANA)
HALF_CLOSED = "half-closed"  # reason in the disconnect event of a client that has closed only its sending side


@dataclass(frozen=True)
class SocketLimits:
    """The limits of each WebSocket. Sizes are in bytes."""

    seconds: float = 10.0  # time limit for reading pending data, and for answering a close frame
    message: int = 1 << 20  # maximum size of a message
    own_memory: int = 1 << 20  # size of a message up to which it needs no shared memory


class LimitedSocket(WebSocketsSansIOProtocol, asyncio.BufferedProtocol):
    """A WebSocket that a client cannot keep open without reading from it, and cannot use to block the event loop.

    uvicorn pings clients, and pauses senders while a client does not read. However, uvicorn closes a connection only
    after all data has been sent, which never happens if the client does not read. This class aborts such a connection.
    If a client has closed its sending side (a half-closed connection), it can read until the application returns.

    Args:
        limits: The limits.
        memory: The memory for large messages, which all WebSockets share. Without free memory, a WebSocket is closed.
        on_lost: Called when the connection has ended.
        options: The options of uvicorn's class.
    """

    def __init__(self, limits: SocketLimits, memory: SharedMemory, on_lost: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self.close_timeout = limits.seconds
        self._limits = limits
        self._on_lost = on_lost
        self._writable_at = self.loop.time()
        self._control_frames = 0  # number since the last check
        self._is_half_closed = False
        self._read = bytearray(READ_BYTES)
        self._memory = memory
        self._taken = 0  # size of shared memory in use
        self._queued: deque[int] = deque()  # sizes of the complete messages that the application has not taken yet
        self._handled = 0  # size of the message that the application handles
        self._check_timer = self.loop.call_later(CHECK_SECONDS, self._check)

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return a small buffer, so that the transport reads only a few frames per iteration of the event loop."""
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._read[:nbytes]))
        self._count_memory()

    def _count_memory(self) -> None:
        """Take shared memory for the messages in memory, if they are large, or return it. Closes the socket if full."""
        if self.disconnected:
            return  # the memory has been released
        held = len(self.conn.reader.buffer) + sum(map(len, self.frames)) + sum(self._queued) + self._handled
        steps = -(-max(0, held - self._limits.own_memory) // MEMORY_STEP)
        missing = steps * MEMORY_STEP - self._taken
        if missing < 0:
            self._memory.release(self._address, -missing)
        elif missing > 0 and not self._memory.take(self._address, missing):
            is_open = self.conn.state is State.OPEN
            return self._fail(TRY_AGAIN, "too many large messages") if is_open else self.transport.abort()
        self._taken += missing

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _fail(self, code: int, reason: str) -> None:
        """Close the socket, and discard the received data."""
        self.conn.fail(code, reason)  # stops the parser
        self.frames = []
        self._release_memory()
        self._wait_for_client(code, reason)

    def _release_memory(self) -> None:
        self._memory.release(self._address, self._taken)
        self._taken = 0

    def data_received(self, data: bytes) -> None:
        if self.conn.parser_exc is not None:
            return  # wait until the client has received the close frame
        if self.handshake_initiated and not self.handshake_complete:
            self.handshake_complete = self.close_sent = True  # a client must not send before the handshake is complete
            return self.transport.abort()
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep a half-closed connection open until the application returns. Returns whether that is possible."""
        if self.conn.state is not State.OPEN or not self.handshake_complete or self.transport.is_closing():
            return False
        self._is_half_closed = True
        self.stop_keepalive()  # the client cannot answer pings
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006, "reason": HALF_CLOSED})
        return True

    def handle_ping(self) -> None:
        super().handle_ping()
        self._count_control_frame()

    def handle_pong(self, event: Frame) -> None:
        super().handle_pong(event)
        self._count_control_frame()

    def _count_control_frame(self) -> None:
        """Close the socket after too many pings and pongs, because sockets take turns only between messages."""
        self._control_frames += 1
        if self._control_frames > MAX_CONTROL_FRAMES and self.conn.state is State.OPEN:
            self._fail(POLICY, f"more than {MAX_CONTROL_FRAMES} pings and pongs within {CHECK_SECONDS:g} s")

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < MAX_FRAGMENTS:
            super().handle_cont(event)
        else:
            self._end(TOO_BIG, "too many fragments")

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not is_utf8(b"".join(self.frames)):
            self.frames = []
            return self._end(INVALID_TEXT, "not UTF-8")  # checked here, because uvicorn would log a traceback
        if not self.close_sent:  # otherwise, the message is discarded
            self._queued.append(sum(map(len, self.frames)))
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        close = self.conn.close_sent
        if close is None or self.close_sent:
            self.transport.close()  # the socket was already closing
        else:
            self._wait_for_client(close.code, close.reason)

    async def receive(self) -> Any:
        await asyncio.sleep(0)  # sockets take turns, even if a client sends many messages at once
        self._handled = 0
        self._count_memory()
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self._handled = self._queued.popleft()
        return message

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        if self.close_sent or self.disconnected:
            if message["type"] == "websocket.send":
                raise ClientDisconnected  # uvicorn would report this as an error in the application
            return
        if message["type"] == "websocket.http.response.start":
            message = {**message, "headers": [*self.default_headers, *message["headers"]]}
        await super().send(message)
        if self.close_sent:
            self.handshake_complete = True  # otherwise, uvicorn logs an error for each refused socket
            if self._is_half_closed:
                self.transport.close()  # the client cannot answer the close frame

    def shutdown(self) -> None:
        if not self.transport.is_closing():  # uvicorn fails if it sends a close code twice
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._check_timer.cancel()
        self._release_memory()
        super().connection_lost(exc)
        self._on_lost()

    def _check(self) -> None:
        """Abort the connection if its client does not read."""
        self._control_frames = 0
        now = self.loop.time()
        if self.writable.is_set() and not self.transport.is_closing():
            self._writable_at = now
        if now - self._writable_at >= self._limits.seconds:
            return self.transport.abort()
        self._check_timer = self.loop.call_later(CHECK_SECONDS, self._check)

    def _end(self, code: int, reason: str) -> None:
        """Close the socket, unless a close frame has been sent or received."""
        if self.conn.state is State.OPEN:
            self.conn.send_close(code, reason)
            self._wait_for_client(code, reason)

    def _wait_for_client(self, code: int, reason: str) -> None:
        """Send the close code, and close the connection when the client answers or the time limit expires.

        If the connection were closed immediately, unread bytes from the client would cause a TCP reset, and the client
        would not receive the code.
        """
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_valid_upgrade(request: bytes) -> bool:
    """Return whether the headers of a request open a WebSocket."""
    protocol = ServerProtocol()
    protocol.receive_data(request)
    events: list[Any] = protocol.events_received()
    try:
        return bool(events) and bool(protocol.process_request(events[0]))
    except (InvalidHandshake, UnicodeError):
        return False
