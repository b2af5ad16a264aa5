"""The WebSocket protocol with limits of time and memory. Independent of the contents of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame
from websockets.protocol import State
from websockets.server import ServerProtocol

CHECK_SECONDS = 1.0  # between two checks of a socket
MAX_FRAGMENTS = 1000  # of a message; empty ones would not count towards its size
MAX_UNREAD = 1 << 20  # bytes that wait for a client to read them; pings are answered whether it reads or not
AWAY, INVALID_TEXT, TOO_BIG = 1001, 1007, 1009  # close codes (RFC 6455, section 7.4)


@dataclass(frozen=True)
class SocketLimits:
    """Limits of each WebSocket."""

    idle: float = 60.0  # seconds without a message in either direction
    seconds: float = 10.0  # for a client to read pending data, or to answer a close frame
    message: int = 1 << 20  # bytes


class LimitedSocket(WebSocketsSansIOProtocol):
    """A WebSocket that a client cannot keep open without reading and sending messages.

    uvicorn pings clients, and pauses senders while a client does not read. But it closes a connection only after
    everything has been sent, which never happens if the client reads nothing. This class then aborts the connection.

    Args:
        limits: The limits.
        on_lost: Called when the connection has ended.
        options: See uvicorn.
    """

    def __init__(self, limits: SocketLimits, on_lost: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self.close_timeout = limits.seconds
        self._limits = limits
        self._on_lost = on_lost
        self._used_at = self._writable_at = self.loop.time()
        self._check_timer = self.loop.call_later(CHECK_SECONDS, self._check)

    def data_received(self, data: bytes) -> None:
        if self.conn.parser_exc is not None:
            return  # the client may not have received the reason yet
        if self.handshake_initiated and not self.handshake_complete:
            self.handshake_complete = self.close_sent = True  # the client must wait for the response
            return self.transport.abort()
        super().data_received(data)
        if self.transport.get_write_buffer_size() > MAX_UNREAD:
            self.transport.abort()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < MAX_FRAGMENTS:
            super().handle_cont(event)
        else:
            self._end(TOO_BIG, "too many fragments")

    def send_receive_event_to_app(self) -> None:
        self._used_at = self.loop.time()
        if self.curr_msg_data_type == "text" and not is_utf8(b"".join(self.frames)):
            self.frames = []
            return self._end(INVALID_TEXT, "not UTF-8")  # uvicorn would log a traceback
        super().send_receive_event_to_app()

    def handle_parser_exception(self) -> None:
        close = self.conn.close_sent
        if close is None or self.close_sent:
            self.transport.close()  # the socket was being closed already
        else:
            self._wait_for_client(close.code, close.reason)

    async def receive(self) -> Any:
        await asyncio.sleep(0)  # sockets take turns, however many messages a client sends at once
        return await super().receive()

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        if self.close_sent or self.disconnected:
            if message["type"] == "websocket.send":
                raise ClientDisconnected  # uvicorn would blame the application if the server has closed the socket
            return
        if message["type"] == "websocket.http.response.start":
            message = {**message, "headers": [*self.default_headers, *message["headers"]]}
        await super().send(message)
        self._used_at = self.loop.time()
        if self.close_sent:
            self.handshake_complete = True  # otherwise uvicorn logs an error after each refusal

    def shutdown(self) -> None:
        if not self.transport.is_closing():  # uvicorn cannot send the close code twice
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._check_timer.cancel()
        super().connection_lost(exc)
        self._on_lost()

    def _check(self) -> None:
        """Abort the connection if its client reads nothing, and close it if it is idle."""
        now = self.loop.time()
        if self.writable.is_set() and not self.transport.is_closing():
            self._writable_at = now
        if now - self._writable_at >= self._limits.seconds:
            return self.transport.abort()
        if self.handshake_complete and now - self._used_at >= self._limits.idle:
            self._end(AWAY, f"no message within {self._limits.idle:g} s")
        self._check_timer = self.loop.call_later(CHECK_SECONDS, self._check)

    def _end(self, code: int, reason: str) -> None:
        """Close the socket, unless a close frame has been sent or received."""
        if self.conn.state is State.OPEN:
            self.conn.send_close(code, reason)
            self._wait_for_client(code, reason)

    def _wait_for_client(self, code: int, reason: str) -> None:
        """Send the close code, and close the connection when the client has answered, but after some seconds anyway.

        If it was closed at once, unread bytes from the client would reset it, and the client would not get the code.
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
