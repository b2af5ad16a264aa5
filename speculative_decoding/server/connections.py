"""The HTTP server: limits on connections, and shutdown. Independent of the contents of requests."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from uvicorn.protocols.http.h11_impl import H11Protocol

from .limits import MAX_MESSAGE
from .service import Service
from .shared_memory import SharedMemory
from .sockets import LimitedSocket, SocketLimits, is_valid_upgrade

LOG = logging.getLogger("speculative_decoding.server")
PING_SECONDS = 20.0  # interval between pings, which detect lost connections
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits that protect the server from clients that send incomplete requests."""

    connections: int = 1000
    per_address: int = 100
    seconds: float = 10.0  # time limit for the headers of a request, or for the rest of a refused body
    refused_bytes: int = 1 << 24  # maximum size of a refused body that is read before the connection is closed
    message: int = MAX_MESSAGE  # maximum size of a message on a WebSocket
    large_messages: int = 16 * MAX_MESSAGE  # maximum size of all large messages that are being received


class LimitedConnection(H11Protocol):
    """A connection that a client cannot keep open without sending a request.

    uvicorn limits only the time between requests. This class also limits the time that headers may take to arrive. It
    reads the rest of a refused body within limits, because many clients read the response only after they have sent the
    body. If there are too many connections, a new one replaces the one that has been waiting longest for a complete
    request, whereas uvicorn's own limit would refuse the new one. When a connection is upgraded to a WebSocket,
    `LimitedSocket` replaces this class, and the connection still counts until the socket is closed.

    Args:
        limits: The limits.
        trusted: Addresses to which the limit per address does not apply. It does not apply to loopback addresses
            either.
        of_address: The number of connections from each address. All connections share and update this counter, because
            counting all connections again for each new connection would be slow.
        sockets: The paths whose requests can be upgraded to a WebSocket. Other upgrades are ignored, as HTTP allows.
        socket_limits: The limits on a WebSocket.
        socket_memory: The memory for large messages on WebSockets.
        options: The options of uvicorn's class.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        trusted: Collection[str],
        of_address: Counter[str],
        sockets: Collection[str],
        socket_limits: SocketLimits,
        socket_memory: SharedMemory,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._limits = limits
        self._trusted = trusted
        self._of_address = of_address
        self._sockets = sockets
        self.ws_protocol_class = partial(  # type: ignore[assignment]
            LimitedSocket, socket_limits, socket_memory, self._release
        )
        self._timer: asyncio.TimerHandle | None = None
        self._refused_bytes = 0
        self.waiting_since = self.loop.time()

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def is_between_requests(self) -> bool:
        """Whether the connection is waiting for the headers of its next request."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio sets TCP_NODELAY only on sockets created with IPPROTO_TCP. Without TCP_NODELAY, each event of a stream
        # is delayed until the client acknowledges the previous event, which takes 40 ms on Linux.
        with suppress(OSError):  # raised on a Mac if the client has disconnected
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._of_address[self.address] += 1
        limit = self._limits.per_address
        if self._of_address[self.address] > limit and not self._is_trusted:
            LOG.warning("%s has %d connections; another one was refused", self.address, limit)
            transport.close()
            return
        if len(self.connections) > self._limits.connections:
            self._replace_another()
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self not in self.connections:
            self._stop_timer()  # a WebSocket has replaced this connection
        elif self.is_between_requests:
            self._start_timer()
            self._refused_bytes += len(data)
            if self._refused_bytes > self._limits.refused_bytes:
                self.transport.close()
        else:
            self._stop_timer()
            self._refused_bytes = 0

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP. They may be part of the body of a request that is being answered."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # once the 400 response is sent, h11 rejects the response to this request
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()
        if self.cycle.more_body:
            self._start_timer()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._release()
        super().connection_lost(exc)

    def _release(self) -> None:
        self._of_address[self.address] -= 1
        if not self._of_address[self.address]:
            del self._of_address[self.address]

    def _should_upgrade(self) -> bool:
        """Return whether a request opens a WebSocket. Requests for other upgrades are answered like normal requests."""
        if self.scope["path"] not in self._sockets or self._get_upgrade() != b"websocket":
            return False
        lines = [b"%s: %s" % header for header in self.headers]
        target = self.scope["raw_path"] + b"?" + self.scope["query_string"]
        start = b"%s %s HTTP/1.1" % (self.scope["method"].encode(), target)
        return is_valid_upgrade(b"\r\n".join([start, *lines, b"", b""]))

    @property
    def _is_trusted(self) -> bool:
        return self.address in self._trusted or not self.address or ipaddress.ip_address(self.address).is_loopback

    def _replace_another(self) -> None:
        """Close the connection that has waited longest for a complete request, unless enough others are closing."""
        others = [each for each in self.connections if each is not self and not each.transport.is_closing()]
        if len(others) >= self._limits.connections:
            requests = [each for each in others if isinstance(each, LimitedConnection)]
            waiting = [each for each in requests if each.is_between_requests or each.cycle.more_body]
            min(waiting, key=lambda each: each.waiting_since, default=self).transport.close()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._limits.seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def make_server(
    app: Starlette, service: Service, trusted_proxies: Collection[str] = (), limits: ConnectionLimits | None = None
) -> uvicorn.Server:
    """Return a uvicorn server. The first SIGTERM or Ctrl-C lets running requests finish, and the second aborts them."""
    limits = limits or ConnectionLimits(per_address=service.limits.max_connections)
    socket_limits = SocketLimits(limits.seconds, limits.message)
    socket_memory = SharedMemory(limits.large_messages)
    sockets = {route.path for route in app.routes if isinstance(route, WebSocketRoute)}
    loop = asyncio.get_running_loop()
    draining = list[Any]()

    class Server(uvicorn.Server):
        def handle_exit(self, number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.drain)

        def drain(self) -> None:
            if draining:
                service.abort()
                self.should_exit = True  # even if a client does not read its response
            else:
                LOG.info("stopping within %g s; a second signal ends the running requests", service.limits.grace)
                draining.append(asyncio.ensure_future(service.drain()))

    # asyncio accepts many connections before the first one is counted
    allow_open_files(4 * limits.connections)
    config = uvicorn.Config(
        app,
        http=partial(  # type: ignore[arg-type]
            LimitedConnection, limits, trusted_proxies, Counter(), sockets, socket_limits, socket_memory
        ),
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",  # `LimitedConnection` chooses the protocol
        ws_max_size=socket_limits.message,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        ws_per_message_deflate=False,  # a small message could decompress to a large one
        headers=[*SECURITY_HEADERS.items()],  # uvicorn also adds these headers to its own responses
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,  # longer than the timeouts of clients and proxies, so they reuse no closed connection
        timeout_graceful_shutdown=5,  # time limit in seconds for sending the rest of the responses
    )
    return Server(config)


def allow_open_files(count: int) -> None:
    """Raise this process's limit on open files, as far as the system allows. The default in a shell on a Mac is 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = raised_limit(soft, hard, count)
    if raised != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


def raised_limit(soft: int, hard: int, wanted: int) -> int:
    """Return a soft limit of at least `wanted`, as far as the hard limit allows."""
    if soft == resource.RLIM_INFINITY:
        return soft
    return max(soft, wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))
