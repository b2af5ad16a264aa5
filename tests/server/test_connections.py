"""Tests slow, incomplete and numerous connections, with a simulated transport and clock."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from speculative_decoding.server.connections import allow_open_files, raised_limit
from tests.support.net import HEALTH, LIMITS, Client, Net, property_test
from tests.support.serving import require_no_traceback
from tests.support.waiting import ManualLoop, run_manually

HALF = b"GET /health HTTP/1.1\r\nHos"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
UNFINISHED = POST + b"Content-Length: 9\r\n\r\n{"
ENDLESS = b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n"


@property_test
async def test_events_of_a_stream_are_not_delayed_by_tcp(net: Net) -> None:
    assert net.connect().options == [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]


@property_test
async def test_headers_have_a_time_limit_however_they_drip(net: Net) -> None:
    silent, slow = net.connect(), net.connect()
    await slow.send(HALF)
    for _ in range(3):
        await net.loop.advance(3.3)
        await slow.send(b"a")
    assert not silent.is_closed and not slow.is_closed
    await net.loop.advance(0.2)
    assert silent.is_closed and slow.is_closed


@property_test
async def test_a_request_in_time_ends_the_time_limit_and_each_request_has_its_own(net: Net) -> None:
    client = net.connect()
    await net.loop.advance(9.9)
    await client.send(ENDLESS)
    await net.loop.advance(1000)
    assert not client.is_closed
    client = net.connect()
    assert "200 OK" in await client.send(HEALTH)
    await net.loop.advance(70)  # uvicorn limits the time between requests
    await client.send(HALF)
    await net.loop.advance(9.9)
    assert not client.is_closed
    await net.loop.advance(0.2)
    assert client.is_closed


@property_test
async def test_the_rest_of_a_refused_body_is_discarded_for_a_while(net: Net) -> None:
    """A client that reads the response only after sending the body gets the response, and can send more requests."""
    for size in (50_000, LIMITS.refused_bytes):
        client = net.connect()
        assert "413 " in await client.send(POST + b"Content-Length: %d\r\n\r\n" % size)
        await net.loop.advance(9.9)
        await client.send(b" " * size)
        assert "200 OK" in await client.send(HEALTH)
    slow = net.connect()
    assert "403 " in await slow.send(POST + b"Content-Length: 9\r\nOrigin: null\r\n\r\n{")
    await net.loop.advance(10.1)
    assert slow.is_closed


@property_test
async def test_a_refused_body_has_a_limit(net: Net) -> None:
    client = net.connect()
    size = LIMITS.refused_bytes
    await client.send(POST + b"Content-Length: %d\r\n\r\n" % (2 * size))
    await client.send(b" " * size)
    assert not client.is_closed
    await client.send(b" ")
    assert client.is_closed


@property_test
async def test_no_request_follows_one_with_two_lengths(net: Net) -> None:
    client = net.connect()
    lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert (await client.send(POST + lengths + HEALTH)).count("HTTP/1.1 400") == 1
    assert "HTTP/1.1 200" not in client.received.decode() and client.is_closed


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
NOT_HTTP = [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello, then no HTTP\r\n\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"Content-Length: -5\r\n\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    CHUNKED + b"5\r\nhelloXX",
    CHUNKED + b"zz\r\n",
    CHUNKED + b"f" * 40 + b"\r\n",
]


@pytest.mark.parametrize("sent", NOT_HTTP)
@pytest.mark.parametrize("path", [b"/v1/completions", b"/health"])
def test_bytes_that_are_not_http_are_refused_without_a_traceback(
    sent: bytes, path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The bytes may follow a valid request. The response to that request must not follow the refusal."""

    @property_test
    async def test(net: Net) -> None:
        client = net.connect()
        head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        assert (await client.send(head + sent)).startswith("HTTP/1.1 4")
        client.finish_sending()
        await net.loop.advance()
        assert not net.state.connections and not net.state.tasks and await net.is_healthy()

    test()
    require_no_traceback(caplog)


@pytest.mark.parametrize(("address", "is_limited"), [("10.0.0.7", True), ("10.0.0.8", False), ("127.0.0.2", False)])
def test_connections_of_one_address_are_limited(
    address: str, is_limited: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Loopback and trusted proxies have no limit. For other addresses, closing a connection allows a new one."""

    async def test(loop: ManualLoop) -> None:
        net = Net(loop, trusted=("10.0.0.8",))
        clients = [net.connect(address) for _ in range(4)]
        assert [client.is_closed for client in clients] == [False] * 3 + [is_limited]
        assert (f"{address} has 3 connections" in caplog.text) == is_limited
        assert "200 OK" in await clients[0].send(HEALTH)
        clients[0].close()
        await loop.advance()
        assert not net.connect(address).is_closed

    run_manually(test)


@property_test
async def test_addresses_without_connections_are_forgotten(net: Net) -> None:
    """Otherwise, the memory would grow with each address of a client that has many, as is common with IPv6."""
    clients = [net.connect(f"2001:db8::{number}") for number in range(4)]
    assert len(net.per_address) == 4
    for client in clients:
        client.close()
    await net.loop.advance()
    assert not net.per_address


@pytest.mark.parametrize("sent", [b"", UNFINISHED])
def test_a_new_connection_replaces_the_one_that_waits_longest(sent: bytes) -> None:
    @property_test
    async def test(net: Net) -> None:
        busy = net.connect()
        await busy.send(ENDLESS)
        clients = list[Client]()
        for _ in range(LIMITS.connections - 1):
            clients.append(net.connect())
            await clients[-1].send(sent)
            await net.loop.advance(0.1)
        for number in range(1, LIMITS.connections):
            assert "200 OK" in await net.connect().send(HEALTH)
            assert [client.is_closed for client in clients] == [True] * number + [False] * (len(clients) - number)
        assert not busy.is_closed
        assert len(net.state.connections) == LIMITS.connections

    test()


@property_test
async def test_a_new_connection_is_closed_if_all_others_are_being_answered(net: Net) -> None:
    clients = [net.connect() for _ in range(LIMITS.connections)]
    for client in clients:
        await client.send(ENDLESS)
    assert net.connect().is_closed and not any(client.is_closed for client in clients)


@property_test
async def test_a_new_connection_costs_the_same_however_many_are_open(net: Net) -> None:
    listed = []

    class Connections(set[Any]):
        def __iter__(self) -> Iterator[Any]:
            listed.append(self)
            return super().__iter__()

    net.state.connections = Connections()
    assert await net.is_healthy() and not listed


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (256, resource.RLIM_INFINITY, 4000),
        (256, 1000, 1000),
        (9000, 9000, 9000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_the_limit_of_open_files_is_raised_but_never_lowered(soft: int, hard: int, raised: int) -> None:
    assert raised_limit(soft, hard, 4000) == raised


def test_open_files_are_allowed() -> None:
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        for wanted in (300, 200):
            allow_open_files(wanted)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
