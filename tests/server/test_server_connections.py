"""Connections of slow, unfinished and numerous clients, on raw sockets."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from resource import RLIM_INFINITY
from typing import Any

import pytest
from starlette.requests import Request

from speculative_decoding.server import app, connections
from speculative_decoding.server.bodies import read_body
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.limits import Limits
from tests.server.test_server_lifecycle import tiny
from tests.support.serving import Serving, serving
from tests.support.waiting import PATIENCE, eventually

LIMITS = Limits(slots=2, queue=2, max_prompts=3, max_body=2000, max_connections=3)
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"GET /health HTTP/1.1\r\nHos"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(tiny(), LIMITS) as made:
        yield made


@pytest.fixture(autouse=True)
def no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test depend on the clock, except those that set a limit to wait for."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", PATIENCE)


@contextmanager
def connected(server: Serving, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=PATIENCE) as client:
        client.sendall(sent)
        yield client


def response(client: socket.socket) -> str:
    """Read the headers and the body of one response."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += client.recv(65536) or pytest.fail(f"closed after {received!r}")
    head, _, body = received.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(headers.get(b"content-length", 0)):
        body += client.recv(65536)
    return (head + b"\n" + body).decode()


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def is_healthy(server: Serving) -> bool:
    with server.client() as client:
        return client.get("/health").status_code == 200


def test_events_of_a_stream_are_not_delayed_by_tcp(server: Serving) -> None:
    with connected(server, HEALTH) as client:
        assert "200 OK" in response(client)
        found = [*server.server.server_state.connections]
        sockets = [each.transport.get_extra_info("socket") for each in found]
        assert sockets and all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in sockets)


@pytest.mark.parametrize("sent", [b"", HALF])
def test_headers_have_a_time_limit(server: Serving, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.05)
    with connected(server, sent) as client:
        assert is_closed(client)


def test_the_rest_of_a_refused_body_has_a_time_limit(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    on_response_complete = connections.LimitedConnection.on_response_complete

    def limit_from_now_on(connection: connections.LimitedConnection) -> None:
        monkeypatch.setattr(connections, "HEADER_SECONDS", 0.05)
        on_response_complete(connection)

    monkeypatch.setattr(connections.LimitedConnection, "on_response_complete", limit_from_now_on)
    with connected(server, POST + b"Content-Length: 9\r\nOrigin: null\r\n\r\n{") as client:
        assert "403 Forbidden" in response(client)
        assert is_closed(client)


def test_a_slow_header_does_not_prolong_the_time_limit(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.05)

    def drip() -> bool:
        client.sendall(b"a")
        return False

    with connected(server, HALF) as client, pytest.raises(OSError):
        eventually(drip)


@pytest.mark.parametrize("sent", [HALF, POST + b"Content-Length: 9\r\n\r\n{"])
def test_half_sent_requests_do_not_block_other_clients(
    server: Serving, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, ExitStack() as stack:
        patch.setattr(connections, "MAX_CONNECTIONS", 5)
        clients = [stack.enter_context(connected(server, sent)) for _ in range(20)]
        assert is_healthy(server)
        assert is_closed(clients[0])  # the one that has waited longest
        with server.client() as client:  # it keeps its connection while it is answered
            assert client.post("/v1/completions", json={"prompt": "abc"}).status_code == 200


def test_connections_of_one_address_are_limited(
    server: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(5)]
        assert is_healthy(server)  # loopback has no limit
    eventually(lambda: not server.server.server_state.connections)
    monkeypatch.setattr(connections.LimitedConnection, "_is_trusted", False)
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(4)]
        assert is_closed(clients[3]) and "127.0.0.1 has 3 connections" in caplog.text
        clients[0].sendall(HEALTH)
        assert "200 OK" in response(clients[0])


def test_addresses_without_connections_are_forgotten(server: Serving) -> None:
    """Otherwise the server remembers every address of a client that has many, as IPv6 gives them."""
    assert is_healthy(server)
    eventually(lambda: not server.server.server_state.connections)
    counts: Counter[str] = server.server.config.http.args[2]  # type: ignore[union-attr]
    assert not counts, counts


def test_a_new_connection_costs_the_same_however_many_are_open(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = []

    class Connections(set[Any]):
        def __iter__(self) -> Iterator[Any]:
            listed.append(self)
            return super().__iter__()

    monkeypatch.setattr(server.server.server_state, "connections", Connections())
    assert is_healthy(server) and not listed


def test_an_overlong_body_is_refused_before_it_arrives(server: Serving) -> None:
    chunk = b"Transfer-Encoding: chunked\r\n\r\n7d1\r\n" + b" " * 2001 + b"\r\n"
    for body in (b"Content-Length: 1000000000\r\n\r\n", chunk):
        with connected(server, POST + body) as client:
            assert "413 " in response(client)


def test_a_body_of_small_chunks_is_refused_at_the_limit() -> None:
    received = 0

    async def receive() -> dict[str, Any]:
        nonlocal received
        received += 1
        return {"type": "http.request", "body": b"1234", "more_body": received < 9}

    with pytest.raises(ServerError, match="at most 10 bytes"):
        asyncio.run(read_body(Request({"type": "http", "headers": []}, receive), 10))
    assert received == 3


def test_the_rest_of_a_refused_body_is_discarded(server: Serving) -> None:
    """So that a client that reads the response only after sending the body gets it, and can send more requests."""
    with connected(server, POST + b"Content-Length: 3000000\r\n\r\n") as client:
        client.sendall(b" " * 3_000_000)
        assert "413 " in response(client)
        client.sendall(HEALTH)
        assert "200 OK" in response(client)


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(server: Serving) -> None:
    lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with connected(server, POST + lengths + HEALTH) as client:
        assert "400 Bad Request" in response(client)
        assert is_closed(client)


LENGTHS = [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Content-Length: -5\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: chunked\r\n",
]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("body", [b"5\r\nhelloXX", b"zz\r\n", b"f" * 40 + b"\r\n", b"hello, then no HTTP\r\n\r\n"])
@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/audio/transcriptions", b"/health"])
def test_bytes_that_are_not_http_are_refused_without_a_traceback(
    server: Serving, lengths: bytes, body: bytes, path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """They may follow a valid request, whose response must not follow the refusal."""
    head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connected(server, head + lengths + b"\r\n" + body) as client:
        assert response(client).startswith("HTTP/1.1 4")
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass
    eventually(lambda: not server.server.server_state.connections and not server.server.server_state.tasks)
    assert is_healthy(server)
    assert not [record for record in caplog.records if record.exc_info or "Exception" in record.getMessage()]


def test_a_body_that_is_unfinished_when_the_server_ends_gets_an_error(caplog: pytest.LogCaptureFixture) -> None:
    with serving(tiny(), LIMITS) as server:
        server.server.config.timeout_graceful_shutdown = 0
        with connected(server, POST + b"Content-Length: 500\r\n\r\n{") as client:
            eventually(lambda: bool(server.server.server_state.tasks))
            server.server.handle_exit(signal.SIGTERM, None)
            answer = response(client)
            assert "503 Service Unavailable" in answer and '"code":"stopping"' in answer, answer
    assert not [record for record in caplog.records if record.exc_info or "Exception" in record.getMessage()]


def test_errors_of_the_server_have_security_headers(
    server: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "model_fields", lambda settings: 1 / 0)
    with server.client() as client:
        failed = client.get("/v1/models")
    assert failed.status_code == 500 and failed.json()["error"]["message"] == "the server failed; see its log"
    assert "default-src 'none'" in failed.headers["content-security-policy"]
    assert failed.headers["x-content-type-options"] == "nosniff"
    eventually(lambda: "ZeroDivisionError" in caplog.text)


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [(256, RLIM_INFINITY, 4000), (256, 1000, 1000), (9000, 9000, None), (RLIM_INFINITY, RLIM_INFINITY, None)],
)
def test_the_limit_of_open_files_is_raised_but_never_lowered(
    soft: int, hard: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(connections.resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(connections.resource, "setrlimit", lambda kind, limit: limits.append(limit))
    connections.allow_open_files(4000)
    assert limits == ([] if raised is None else [(raised, hard)])
