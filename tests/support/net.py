"""A server whose transports and clock a test controls, and the clients at their other ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.frames import Opcode

from speculative_decoding import GenerationOptions
from speculative_decoding.server.app import ServerSettings, make_app
from speculative_decoding.server.connections import ConnectionLimits, LimitedConnection, make_server
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.metrics import Metrics
from speculative_decoding.server.service import Service
from tests.support.frames import UPGRADE, frame
from tests.support.waiting import ManualLoop, run_manually

LIMITS = ConnectionLimits(
    connections=5, per_address=3, seconds=10.0, refused_bytes=100_000, message=3_690, large_messages=50_000
)
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
BUFFER = 1 << 16  # bytes that a transport keeps for a client before it pauses the server


class Client(asyncio.Transport):
    """The transport of a connection, as its client sees it. The client answers pings.

    Attributes:
        received: What the server has sent.
        is_closed: Whether the server has closed the connection.
        is_stalled: Whether the client reads nothing.
        is_lost: Whether the server has released the connection.
    """

    def __init__(self, made: Callable[[], LimitedConnection], loop: ManualLoop, address: str) -> None:
        super().__init__({"socket": self})
        self.getpeername = self.getsockname = lambda: (address, 80)
        self.received = b""
        self.is_closed = self.is_stalled = self.is_lost = False
        self.options: list[tuple[int, ...]] = []
        self._loop = loop
        self._is_paused = False
        self._unread = b""  # by a protocol that reads into its own buffer
        self._protocol: Any = made()
        self._protocol.connection_made(self)

    def setsockopt(self, *option: int) -> None:
        self.options.append(option)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def write(self, data: Any) -> None:
        self.received += data
        if data[:1] == b"\x89" and not self.is_stalled:
            self._loop.call_soon(self.receive, frame(data[2:], Opcode.PONG))
        if self.is_stalled and len(self.received) > BUFFER:
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.received) if self.is_stalled else 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        is_first, self.is_closed = not self.is_closed, True
        if is_first and not self.get_write_buffer_size():
            self.abort()

    def abort(self) -> None:
        self.is_closed = True
        if not self.is_lost:
            self.is_lost = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._read_some)

    def receive(self, data: bytes) -> None:
        """Give the server bytes. Tasks do not run. A WebSocket reads a part of them in each pass of the loop."""
        if not data or self.is_closed:
            return
        if isinstance(self._protocol, asyncio.BufferedProtocol):
            self._unread += data
            self._read_some()
        else:
            self._protocol.data_received(data)

    def _read_some(self) -> None:
        if self._unread and not self._is_paused and not self.is_lost:
            buffer = self._protocol.get_buffer(-1)
            part, self._unread = self._unread[: len(buffer)], self._unread[len(buffer) :]
            buffer[: len(part)] = part
            self._loop.call_soon(self._read_some)
            self._protocol.buffer_updated(len(part))

    async def send(self, data: bytes) -> str:
        """Send bytes. Returns what the server has answered."""
        if not self.is_stalled:
            self.received = b""
        self.receive(data)
        await self._loop.advance()
        return self.received.decode(errors="replace")

    async def upgrade(self, headers: bytes = b"") -> str:
        """Ask for a WebSocket. Returns the response."""
        return await self.send(UPGRADE + headers + b"\r\n")

    async def message(self, text: str) -> bytes:
        """Send a text message. Returns what the server has sent since."""
        await self.send(frame(text.encode()))
        return self.received

    def finish_sending(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    @property
    def close_code(self) -> int | None:
        """The code in a close frame that the server has sent since the client's last message, or None."""
        rest = self.received.partition(b"\r\n\r\n")[2] if self.received.startswith(b"HTTP") else self.received
        while rest:
            size = {126: 2, 127: 8}.get(rest[1], 0)
            end = 2 + size + (int.from_bytes(rest[2 : 2 + size]) if size else rest[1])
            if rest[0] == 0x88:
                return int.from_bytes(rest[2:4])
            rest = rest[end:]
        return None


class Net:
    """A server without real sockets. Requests for /endless are never answered; /echo is a WebSocket."""

    def __init__(
        self,
        loop: Any,
        trusted: tuple[str, ...] = (),
        token: str | None = None,
        limits: ConnectionLimits = LIMITS,
    ) -> None:
        thread: Any = SimpleNamespace(decoding=0, waiting=0)
        service = Service(thread, Limits(max_body=2000, max_connections=3), Metrics())
        service.state = "ready"
        service.session = SimpleNamespace(model=SimpleNamespace(audio=None))  # type: ignore[assignment]
        service.options = GenerationOptions()
        app = make_app(service, ServerSettings("tiny", {}, token=token))

        async def endless(request: Any) -> Any:
            await asyncio.Event().wait()

        app.routes.extend([Route("/endless", endless), WebSocketRoute("/echo", echo)])
        self.app = app
        self.server = make_server(app, service, trusted, limits)
        self.server.config.load()
        self.loop = loop
        self.state = self.server.server_state
        self.state.default_headers = self.server.config.encoded_headers  # uvicorn's main loop does it, too

    @property
    def per_address(self) -> Any:
        return self.server.config.http.args[2]  # type: ignore[union-attr]

    @property
    def socket_memory(self) -> int:
        """The size of the shared memory that large messages use."""
        return self.server.config.http.args[5].used  # type: ignore[union-attr]

    @property
    def metrics(self) -> str:
        return self.app.state.service.metrics.text().decode()

    def protocol(self) -> LimitedConnection:
        made: Any = self.server.config.http_protocol_class
        return made(config=self.server.config, server_state=self.state, app_state={}, _loop=self.loop)

    def connect(self, address: str = "127.0.0.1") -> Client:
        return Client(self.protocol, self.loop, address)

    async def is_healthy(self) -> bool:
        client = self.connect()
        found = "200 OK" in await client.send(HEALTH)
        client.close()
        await self.loop.advance()
        return found


async def echo(socket: WebSocket) -> None:
    """Echo each message; "fail" raises an error, "send N" sends N bytes, and "close" closes after the next event."""
    await socket.accept("realtime" if "realtime" in socket.scope["subprotocols"] else None)
    while True:
        text = await socket.receive_text()
        assert text != "fail"
        if text == "close":
            await socket.receive()
            return await socket.close()
        await socket.send_text("a" * int(text[5:]) if text.startswith("send ") else text)


def property_test(
    test: Callable[[Net], Coroutine[Any, Any, None]], limits: ConnectionLimits = LIMITS
) -> Callable[[], None]:
    def run() -> None:
        async def start(loop: ManualLoop) -> None:
            net = Net(loop, limits=limits)
            await test(net)
            for task in [*net.state.tasks]:
                task.cancel()
            await loop.advance()

        run_manually(start)

    run.__doc__ = test.__doc__
    return run
