"""Tests which hosts, origins and tokens may access the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from speculative_decoding.server.guard import Guard

TOKEN = "correct-horse-battery"
HOST = ("host", "texts.example")
BEARER = ("authorization", f"Bearer {TOKEN}")


def answer(
    *headers: tuple[str, str],
    path: str = "/v1/models",
    token: str | None = None,
    app: Any = None,
    scope_type: str = "http",
    subprotocols: Sequence[str] = (),
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the messages of the response, and the logged statuses. The application returns 200."""
    sent: list[dict[str, Any]] = []
    logged: list[int] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def accept(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    scope: dict[str, Any] = {"type": scope_type, "path": path, "headers": raw}
    if scope_type == "websocket":
        scope |= {"subprotocols": list(subprotocols), "extensions": {"websocket.http.response": {}}}
    guard = Guard(app or accept, ["Texts.example"], token, lambda scope, status, seconds: logged.append(status))
    asyncio.run(guard(scope, None, send))  # type: ignore[arg-type]
    return sent, logged


def refusal(*headers: tuple[str, str], **options: Any) -> tuple[int, str | None]:
    """Return the status and the error code, or None for an accepted request.

    A WebSocket must get the same response.
    """
    sent, logged = answer(*headers, **options)
    assert logged == [sent[0]["status"]]
    as_socket, logged = answer(*headers, **options, scope_type="websocket")
    if len(sent) > 1:
        assert as_socket == [each | {"type": f"websocket.{each['type']}"} for each in sent]
    assert as_socket[0]["status"] == sent[0]["status"] == logged[0]
    error = json.loads(sent[1]["body"])["error"] if len(sent) > 1 else None
    return sent[0]["status"], error["code"] if isinstance(error, dict) else error


@pytest.mark.parametrize("host", ["localhost:", "127.0.0.1:9", "[FE80::1]:80", "Texts.Example"])
def test_names_of_the_server_and_addresses_are_allowed(host: str) -> None:
    assert refusal(("host", host)) == (200, None)


FOREIGN = [
    *("evil.example", "localhost.evil.example", "", "x@localhost", "[::1", "localhost:80, evil.example"),
    *("localhost/evil.example", "localhost:80:90", "1.2.3", "\xe9"),
]


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], *([host] for host in FOREIGN)], ids=str)
def test_other_hosts_are_refused(hosts: Sequence[str]) -> None:
    """Otherwise, an attacker's host name for this address would make the attacker's pages same-origin."""
    assert refusal(*(("host", host) for host in hosts)) == (403, "wrong_host")


@pytest.mark.parametrize(
    ("origins", "status"),
    [
        (["https://texts.example"], 200),
        (["http://Texts.Example"], 200),
        (["null"], 403),
        (["https://texts.example.evil.example"], 403),
        (["http://["], 403),
        (["https://texts.example:8443"], 403),
        (["https://texts.example", "https://evil.example"], 403),
    ],
)
def test_only_pages_of_the_server_may_use_it(origins: Sequence[str], status: int) -> None:
    found = refusal(HOST, *(("origin", origin) for origin in origins))
    assert found == (status, None if status == 200 else "wrong_origin")


@pytest.mark.parametrize(
    "given", [None, TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xe9"]
)
def test_a_request_needs_the_token(given: str | None) -> None:
    headers = [HOST] if given is None else [HOST, ("authorization", given)]
    sent, logged = answer(*headers, token=TOKEN)
    assert logged == [401] and (b"www-authenticate", b"Bearer") in sent[0]["headers"]
    assert b"missing or wrong token" in sent[1]["body"]
    assert refusal(HOST, BEARER, token=TOKEN) == (200, None)


SUBPROTOCOL = "openai-insecure-api-key."


@pytest.mark.parametrize(
    ("scope_type", "given", "status"),
    [
        ("websocket", ["realtime", SUBPROTOCOL + TOKEN], 200),
        ("websocket", [SUBPROTOCOL + TOKEN.replace("-", "%2D")], 200),  # percent-encoded, as web pages send it
        ("websocket", ["realtime"], 401),
        ("websocket", [TOKEN], 401),
        ("websocket", [SUBPROTOCOL], 401),
        ("websocket", [f"{SUBPROTOCOL}{TOKEN}x"], 401),
        ("websocket", [f"{SUBPROTOCOL}x", SUBPROTOCOL + TOKEN], 401),
        ("http", [SUBPROTOCOL + TOKEN], 401),
    ],
)
def test_only_a_socket_may_have_the_token_in_a_subprotocol(scope_type: str, given: Sequence[str], status: int) -> None:
    offered = ("sec-websocket-protocol", ", ".join(given))
    assert answer(HOST, offered, token=TOKEN, scope_type=scope_type, subprotocols=given)[1] == [status]
    wrong = ("authorization", "Bearer wrong")  # the header has precedence
    assert answer(HOST, offered, wrong, token=TOKEN, scope_type=scope_type, subprotocols=given)[1] == [401]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(("/", 200), ("/page.js", 200), ("/page.css", 200), ("/health", 200), ("/health/", 401), ("/nothing", 401)),
        *(("/languages", 200), ("/frontend/settings", 200), ("/frontend/settings/", 401), ("/download_file/x", 401)),
    ],
)
def test_only_pages_without_texts_need_no_token(path: str, status: int) -> None:
    assert refusal(HOST, path=path, token=TOKEN)[0] == status


@pytest.mark.parametrize("path", ["/translate", "/translate_file", "/detect"])
def test_libretranslate_may_send_its_token_in_the_body(path: str) -> None:
    assert answer(HOST, path=path, token=TOKEN)[1] == [200]  # `read_request` checks the token in the body
    assert answer(HOST, path=path, token=TOKEN, scope_type="websocket")[1] == [401]  # a WebSocket has no body
    assert answer(HOST, ("authorization", "Bearer x"), path=path, token=TOKEN)[1] == [401]


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed() -> None:
    lengths = (("content-length", "5"), ("transfer-encoding", "chunked"))
    sent, logged = answer(HOST, *lengths)
    assert logged == [400] and b"two_lengths" in sent[1]["body"]
    assert (b"connection", b"close") in sent[0]["headers"]
    assert [refusal(HOST, each) for each in lengths] == [(200, None)] * 2


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_cancelled_request_gets_an_error_unless_its_response_has_begun(has_begun: bool) -> None:
    async def cancelled(scope: Any, receive: Any, send: Any) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise asyncio.CancelledError

    sent, logged = answer(HOST, app=cancelled)
    assert logged == [200 if has_begun else 503] and len(sent) == (1 if has_begun else 2)
    assert has_begun or b'"stopping"' in sent[1]["body"]


def test_a_failed_request_is_logged_as_500_and_one_without_response_as_0() -> None:
    logged: list[int] = []

    async def fail(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/fails":
            raise ZeroDivisionError

    guard = Guard(fail, (), None, lambda scope, status, seconds: logged.append(status))
    scope = {"type": "http", "headers": [(b"host", b"localhost")]}
    with pytest.raises(ZeroDivisionError):
        asyncio.run(guard(scope | {"path": "/fails"}, None, None))  # type: ignore[arg-type]
    asyncio.run(guard(scope | {"path": "/leaves"}, None, None))  # type: ignore[arg-type]
    assert logged == [500, 0]
