"""Tests WebSockets of slow, idle and hostile clients. Most tests simulate the transport and the clock."""

from __future__ import annotations

import asyncio
import shutil
import struct
from dataclasses import replace
from urllib.parse import quote

import pytest
from websockets.frames import Opcode

from speculative_decoding.server.connections import SECURITY_HEADERS, LimitedConnection
from speculative_decoding.server.sockets import MAX_CONTROL_FRAMES, READ_BYTES
from tests.support.frames import BROKEN, INVALID, UPGRADE, frame
from tests.support.net import HEALTH, LIMITS, Client, Net, property_test
from tests.support.serving import require_no_traceback

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


async def opened(net: Net, address: str = "10.0.0.7") -> Client:
    client = net.connect(address)
    assert "101 Switching" in await client.upgrade()
    return client


async def require_released(net: Net) -> None:
    await net.loop.advance()
    assert not net.per_address and not net.state.connections and not net.state.tasks and await net.is_healthy()


@property_test
async def test_a_socket_outlives_the_time_limit_of_headers_and_has_the_security_headers(net: Net) -> None:
    client = net.connect()
    response = await client.upgrade(b"Sec-WebSocket-Extensions: permessage-deflate\r\n")
    assert "101 Switching" in response and "deflate" not in response
    assert all(f"{name.lower()}: {value}" in response for name, value in SECURITY_HEADERS.items())
    await net.loop.advance(LIMITS.seconds + 5)
    assert await client.message("a") == b"\x81\x01a" and not client.is_closed


@pytest.mark.parametrize("header", [b"Origin: http://evil.example\r\n", b"Origin: null\r\n"])
def test_an_upgrade_is_refused_like_a_request(header: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise, a page of another origin could use the server (cross-site WebSocket hijacking)."""

    @property_test
    async def test(net: Net) -> None:
        client, other = net.connect(), net.connect()
        refused = await client.upgrade(header)
        expected = await other.send(b"GET /echo HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n")
        assert refused.startswith("HTTP/1.1 403") and "101" not in refused and client.is_closed
        assert refused.partition("\r\n\r\n")[2] == expected.partition("\r\n\r\n")[2] != ""
        assert "x-content-type-options: nosniff" in refused.lower()
        other.close()
        await require_released(net)

    test()
    require_no_traceback(caplog)
    assert "completing handshake" not in caplog.text


@pytest.mark.parametrize("sent", INVALID.values(), ids=INVALID)
def test_an_invalid_upgrade_is_answered_like_a_request(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    @property_test
    async def test(net: Net) -> None:
        client = net.connect()
        status = (await client.send(sent + b"\r\n"))[9:12]
        assert status == "200" if b"/health" in sent else status in ("404", "405"), status
        assert "nosniff" in client.received.decode() and 'status="101"' not in net.metrics
        await net.loop.advance(1000)
        assert client.is_closed
        await require_released(net)

    test()
    require_no_traceback(caplog)


@property_test
async def test_a_socket_counts_until_its_connection_ends(net: Net) -> None:
    clients = [await opened(net) for _ in range(LIMITS.per_address)]
    assert net.connect("10.0.0.7").is_closed
    clients[0].abort()  # without a close frame
    await clients[1].send(frame(struct.pack("!H", 1000), Opcode.CLOSE))
    assert clients[1].close_code == 1000
    clients[2].finish_sending()
    await require_released(net)
    assert 'responses_total{path="other",status="101"} 3.0' in net.metrics


@property_test
async def test_sockets_count_among_all_connections(net: Net) -> None:
    clients = [await opened(net, f"10.0.0.{number}") for number in range(LIMITS.connections - 1)]
    waiting = net.connect()
    newest = net.connect()
    assert (
        waiting.is_closed and not newest.is_closed
    )  # sockets are in use, so a connection without a request is closed instead
    clients.append(newest)
    assert "101" in await newest.upgrade()
    assert net.connect().is_closed and not any(client.is_closed for client in clients)


@property_test
async def test_a_client_that_vanishes_is_found_by_pings(net: Net) -> None:
    client = await opened(net)
    client.is_stalled = True
    for seconds in (20, 20, 1, LIMITS.seconds):
        assert not client.is_lost
        await net.loop.advance(seconds)
    assert client.close_code == 1011
    await require_released(net)


@pytest.mark.parametrize("sent", [b"send 100000", b"closes"])
def test_a_client_that_reads_nothing_loses_its_connection(sent: bytes) -> None:
    """A transport closes only after it has sent all data, so it must be aborted."""

    @property_test
    async def test(net: Net) -> None:
        client, other = await opened(net), await opened(net, "10.0.0.8")
        client.is_stalled = True
        await client.send(frame(b"send 100000"))
        if sent == b"closes":
            await client.send(frame(b"", Opcode.CLOSE))
        assert await other.message("a") == b"\x81\x01a"
        for _ in range(int(LIMITS.seconds)):
            assert not client.is_lost
            await net.loop.advance(1)
        await net.loop.advance(1)
        assert client.is_lost and await other.message("a") == b"\x81\x01a"
        other.abort()
        await require_released(net)

    test()


@property_test
async def test_many_messages_of_a_client_do_not_delay_those_of_another(net: Net) -> None:
    busy, other = await opened(net), await opened(net)
    busy.receive(frame(b"a") * 1000)
    other.receive(frame(b"b"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert other.received.endswith(b"\x81\x01b") and busy.received.count(b"\x81\x01a") < 20


MIB = 1 << 20
LARGE = replace(LIMITS, connections=20, per_address=9, message=3 * MIB, large_messages=4 * MIB)


async def send_all(net: Net, client: Client, data: bytes) -> None:
    """Send many bytes, and wait until the server has read them."""
    client.received = b""
    client.receive(data)
    while client._unread and not client.is_lost:
        await net.loop.advance()
    await net.loop.advance()


LARGEST = frame(b"a" * LARGE.message)


def begun(size: int) -> bytes:
    """Return the beginning of the largest frame, with `size` bytes of its message."""
    return LARGEST[: 14 + size]


@pytest.mark.parametrize("fragments", [1, 3])
def test_a_large_message_arrives_and_uses_memory_only_until_then(fragments: int) -> None:
    async def test(net: Net) -> None:
        client = await opened(net)
        size = LARGE.message // fragments
        for number in range(fragments):
            opcode = Opcode.CONT if number else Opcode.TEXT
            sent = frame(b"a" * size, opcode, fin=number == fragments - 1)
            await send_all(net, client, sent[:-1])
            assert max(0, (number + 1) * size - 1 - MIB) <= net.socket_memory <= (number + 1) * size
            await send_all(net, client, sent[-1:])
        assert net.socket_memory == 0 and client.received.count(b"a") == fragments * size
        await send_all(net, client, frame(b"a" * (LARGE.message + 1))[:14])
        assert client.close_code == 1009 and net.socket_memory == 0
        await net.loop.advance(LIMITS.seconds + 1)
        await require_released(net)

    property_test(test, LARGE)()


@pytest.mark.parametrize("end", ["abort", "the rest", "a failure", "stop"])
def test_a_client_shares_the_memory_for_large_messages(end: str) -> None:
    """A message up to 1 MiB needs none. A client may use as much as then remains free; its others are refused."""

    async def test(net: Net) -> None:
        large = [await opened(net) for _ in range(2)]
        for client in large:
            await send_all(net, client, begun(2 * MIB - 100))
            assert client.close_code is None
        refused, small = await opened(net), await opened(net)
        await send_all(net, refused, begun(MIB + 1))
        assert refused.close_code == 1013 and net.socket_memory == 2 * MIB
        await send_all(net, small, begun(MIB - 100))
        other = await opened(net, "10.0.0.8")
        await send_all(net, other, begun(2 * MIB - 100))
        assert small.close_code is other.close_code is None and net.socket_memory == 3 * MIB
        if end == "abort":
            for client in large:
                client.abort()
        elif end == "the rest":
            large[0].abort()
            other.abort()
            await net.loop.advance()
            await send_all(net, large[1], LARGEST[len(begun(2 * MIB - 100)) :])
            assert large[1].received.count(b"a") == LARGE.message
        elif end == "stop":
            for connection in list(net.state.connections):
                connection.shutdown()
        else:
            for client in large:
                client._protocol._fail(1008, "planted")
                assert client.close_code == 1008
        await net.loop.advance()
        assert net.socket_memory == (MIB if end in ("abort", "a failure") else 0)
        for client in (*large, refused, small, other):
            client.abort()
        await require_released(net)
        assert net.socket_memory == 0

    property_test(test, LARGE)()


@property_test
async def test_a_large_message_for_a_closing_socket_is_discarded(net: Net) -> None:
    client = await opened(net)
    await client.send(frame(b"close") + frame(b"b"))
    assert client.close_code == 1000
    await client.send(frame(b"a" * LIMITS.message))
    assert net.socket_memory == 0 and not client.is_lost
    await client.send(frame(struct.pack("!H", 1000), Opcode.CLOSE))
    await net.loop.advance(LIMITS.seconds + 1)
    await require_released(net)


@pytest.mark.parametrize("opcode", [Opcode.PING, Opcode.PONG])
@pytest.mark.parametrize("size", [0, 125])
def test_many_control_frames_end_a_socket_and_delay_nobody(opcode: Opcode, size: int) -> None:
    """Control frames cost as much time as messages, and unread answers to pings would fill memory."""

    @property_test
    async def test(net: Net) -> None:
        busy, other = await opened(net), await opened(net, "10.0.0.8")
        for _ in range(3):
            await busy.send(frame(b"a" * size, opcode) * MAX_CONTROL_FRAMES)
            await net.loop.advance(1)
            assert busy.close_code is None
        busy.received = b""
        busy.receive(frame(b"a" * size, opcode) * 40_000)
        other.receive(frame(b"b"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert other.received.endswith(b"\x81\x01b")
        await net.loop.advance()
        assert busy.close_code == 1008 and len(busy.received) < 2 * READ_BYTES
        await net.loop.advance(LIMITS.seconds)
        assert busy.is_lost
        other.abort()
        await require_released(net)

    test()


@property_test
async def test_a_client_that_sends_no_more_can_read_until_the_application_ends(net: Net) -> None:
    client = await opened(net)
    client.receive(frame(b"send 3") + frame(b"b"))
    client.finish_sending()
    await net.loop.advance()
    assert client.received.endswith(b"\x81\x03aaa\x81\x01b") and client.is_lost
    other = await opened(net)
    other.receive(frame(b"close"))
    other.finish_sending()
    await net.loop.advance()
    assert other.close_code == 1000 and other.is_lost  # closed without waiting for an answer
    await require_released(net)


@pytest.mark.parametrize(("sent", "code"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("is_accepted", [True, False])
def test_broken_frames_end_a_socket(
    sent: bytes, code: int, is_accepted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A client may send them before the socket is accepted. It gets the close code even while it is still sending."""

    @property_test
    async def test(net: Net) -> None:
        client = net.connect()
        if not is_accepted:
            client.receive(UPGRADE + b"\r\n")
            client.receive(sent)
        else:
            await client.upgrade()
            await client.send(sent)
            assert client.close_code == code
        await client.send(sent * 3)
        await net.loop.advance(LIMITS.seconds + 2)
        assert client.is_lost
        await require_released(net)

    test()
    require_no_traceback(caplog)


@property_test
async def test_a_socket_that_fails_says_so(net: Net) -> None:
    client = await opened(net)
    await client.message("fail")
    assert client.close_code == 1011 and 'status="500"' in net.metrics
    client.abort()
    await require_released(net)


@pytest.mark.parametrize(
    "sent",
    [b"", frame(struct.pack("!H", 1000), Opcode.CLOSE), b"\x81\x01a"],
    ids=["nothing", "a close frame", "an unmasked frame"],
)
def test_sockets_end_when_the_server_stops(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """This includes sockets that are closing while their clients do not read."""

    @property_test
    async def test(net: Net) -> None:
        client, stalled = await opened(net), await opened(net)
        stalled.is_stalled = True
        for each in (client, stalled):
            await each.send(frame(b"send 70000") * (each is stalled) + sent)
        for connection in list(net.state.connections):
            connection.shutdown()
        assert client.close_code == (1012 if not sent else 1000 if sent[:1] == b"\x88" else 1002)
        await net.loop.advance(LIMITS.seconds + 1)
        await net.loop.advance(1)
        await require_released(net)

    test()
    require_no_traceback(caplog)


def test_upgrades_and_aborts_leave_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses real connections from an address with a limit."""
    monkeypatch.setattr(LimitedConnection, "_is_trusted", False)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        net = Net(loop)
        server = await loop.create_server(net.protocol, "127.0.0.1", 0)
        for number in range(300):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(UPGRADE + b"\r\n")
            if number % 3:
                await reader.readuntil(b"\r\n\r\n")
            writer.write(frame(b"a" * 1000)[: 300 * (number % 3)])
            writer.transport.abort()
            while number % LIMITS.per_address == 0 and net.per_address:
                await asyncio.sleep(0.001)
        while net.per_address or net.state.connections or net.state.tasks:
            await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(HEALTH)
        assert b"200 OK" in await reader.readline()
        assert net.per_address == {"127.0.0.1": 1}
        writer.close()
        server.close()

    asyncio.run(test())


OPEN = """([url, protocols]) => new Promise((resolve) => {
    const socket = new WebSocket(url, protocols);
    socket.onopen = () => socket.send("a");
    socket.onmessage = (event) => resolve(event.data);
    socket.onclose = (event) => resolve(event.code);
})"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium")
def test_only_the_servers_own_page_opens_a_socket_and_needs_the_token() -> None:
    """Uses a real browser. Any character of the token can be escaped."""
    playwright = pytest.importorskip("playwright.async_api", reason="pip install playwright")
    token = "correct/horse=battery,staple"

    async def other_page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    async def test() -> None:
        loop = asyncio.get_running_loop()
        net = Net(loop, token=token)
        server = await loop.create_server(net.protocol, "127.0.0.1", 0)
        other = await asyncio.start_server(other_page, "127.0.0.1", 0)
        own, foreign = (f"127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in (server, other))
        offered = ["realtime", f"openai-insecure-api-key.{quote(token, safe='')}"]
        async with playwright.async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = await browser.new_page()
            for address, protocols, expected in (
                (own, offered, "a"),
                (own, offered[:1], 1006),
                (foreign, offered, 1006),
            ):
                await page.goto(f"http://{address}/")
                assert await page.evaluate(OPEN, [f"ws://{own}/echo", protocols]) == expected
            await browser.close()
        assert [f'path="other",status="{status}"' in net.metrics for status in (101, 401, 403)] == [True] * 3
        server.close()
        other.close()

    asyncio.run(test())
