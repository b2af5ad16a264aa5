"""Hostile and valid clients of /v1/realtime. Measures the delay of one client's text before and during the attack."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import numpy as np
import websockets
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.server_process import ServerProcess, server_process, wait_for
from speculative_decoding.server.connections import allow_open_files
from tests.support.frames import BROKEN, INVALID, UPGRADE, frame
from tests.support.serving import NO_TLS
from tests.support.speech import noise
from tests.support.waiting import PATIENCE
from tools.fuzz_files import mutate

from .clients import GROWTH, is_idle
from .random_requests import RECORDINGS, value

PROGRAM = ("tools.check_server.tiny_whisper",)
PATH = b"/v1/realtime"
RATE = 24_000
KINDS = ["session.update", *(f"input_audio_buffer.{name}" for name in ("append", "commit", "clear")), "response.create"]
REFUSED = [b"Origin: http://evil.example\r\n", b"Origin: null\r\n", b"Host: evil.example\r\n"]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def pcm(seed: int, seconds: float) -> str:
    samples = noise(seed, seconds * RATE / 16000)
    return base64.b64encode((samples * 32767).astype("<i2").tobytes()).decode()


AUDIO = [pcm(seed, seconds) for seed, seconds in enumerate((0.02, 0.25, 0.25, 1.0))]


def event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})


def append(rng: random.Random) -> str:
    return event("input_audio_buffer.append", audio=rng.choice(AUDIO))


COMMIT = event("input_audio_buffer.commit")


def random_event(rng: random.Random) -> bytes:
    """Return a random event, which may be valid."""
    fields = {
        "type": rng.choice(KINDS),
        "audio": rng.choice(AUDIO),
        "event_id": "a",
        "session": {"type": "transcription"},
    }
    for _ in range(rng.choice([0, 0, 1, 2])):
        fields[rng.choice(["type", "audio", "session", "event_id", "x"])] = value(rng)
    content = json.dumps(fields, ensure_ascii=rng.random() < 0.5, default=str).encode("utf-8", "replace")
    return mutate(content, rng) if rng.random() < 0.3 else content


class Clients:
    """Clients of a server. Each client is a coroutine that performs a sequence of actions.

    Args:
        port: The server's port.
        longest: How many seconds some clients keep their connection open, unless the server closes it.

    Attributes:
        outcomes: The number of times each action had each outcome.
    """

    def __init__(self, port: int, longest: float = 0.0) -> None:
        self.outcomes: Counter[str] = Counter()
        self._longest = longest
        self._port = port
        self._url = f"ws://127.0.0.1:{port}{PATH.decode()}"

    async def run(self, seed: int, until: float) -> None:
        """Run random actions. Raises AssertionError for an invalid response."""
        rng = random.Random(seed)
        actions: list[Callable[[random.Random], Awaitable[str]]] = [
            *(self.upgrade_wrongly, self.leave_upgrade, self.send_broken_frames, self.send_rubbish),
            *(self.stall, self.vanish, self.abort, self.speak, self.record),
        ]
        while time.monotonic() < until:
            action = rng.choice(actions)
            try:
                outcome = await asyncio.wait_for(action(rng), PATIENCE)
            except (ConnectionError, asyncio.IncompleteReadError, websockets.ConnectionClosed):
                outcome = "closed by the server"
            self.outcomes[f"{action.__name__}: {outcome}"] += 1

    @asynccontextmanager
    async def _connection(self, *, is_upgraded: bool = True, is_small: bool = False) -> Any:
        client = socket.socket()
        if is_small:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self._port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets it
        reader, writer = await asyncio.open_connection(sock=client, limit=1024 if is_small else 1 << 16)
        try:
            if is_upgraded:
                writer.write(UPGRADE.replace(b"/echo", PATH) + b"\r\n")
                assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            yield reader, writer
        finally:
            writer.transport.abort()

    async def upgrade_wrongly(self, rng: random.Random) -> str:
        """Request a WebSocket in an invalid way."""
        sent = rng.choice([*INVALID.values(), *(UPGRADE + header for header in REFUSED)]).replace(b"/echo", PATH)
        sent = mutate(sent, rng) if rng.random() < 0.3 else sent
        async with self._connection(is_upgraded=False) as (reader, writer):
            writer.write(sent + b"\r\n")
            status = (await reader.readline())[9:12].decode()
        assert status in ("", "101", "200", "400", "403", "404", "405", "413", "426", "431"), (status, sent)
        return status or "closed by the server"

    async def leave_upgrade(self, rng: random.Random) -> str:
        """Send part of an upgrade request, or a frame before the response, and disconnect."""
        sent = UPGRADE.replace(b"/echo", PATH) + b"\r\n"
        async with self._connection(is_upgraded=False) as (_, writer):
            writer.write(sent[: rng.randrange(len(sent))] if rng.random() < 0.7 else sent + frame(COMMIT.encode()))
            await asyncio.sleep(rng.choice([0, 0.01, 0.3, self._longest / 4]))
        return "left"

    async def send_broken_frames(self, rng: random.Random) -> str:
        async with self._connection() as (reader, writer):
            for _ in range(rng.randrange(3)):
                writer.write(frame(append(rng).encode()))
            sent, _ = rng.choice([*BROKEN.values()])
            writer.write(mutate(sent, rng) if rng.random() < 0.5 else sent)
            writer.write(frame(COMMIT.encode()))
            return await self._read_until_closed(reader)

    async def send_rubbish(self, rng: random.Random) -> str:
        async with self._connection() as (reader, writer):
            for _ in range(rng.randrange(20)):
                content = random_event(rng)
                writer.write(frame(content, rng.choice([1, 1, 1, 2])))
            writer.write(frame(struct.pack("!H", 1000), 8))
            return await self._read_until_closed(reader)

    async def _read_until_closed(self, reader: asyncio.StreamReader) -> str:
        """Read everything that the server sends. It must not contain a traceback."""
        received = b""
        with suppress(ConnectionError):
            while more := await reader.read(1 << 16):
                received = received[-100_000:] + more
        assert b"Traceback" not in received and b"internal" not in received.lower(), received[-2000:]
        return "closed by the server"

    async def stall(self, rng: random.Random) -> str:
        """Send pings and events that require answers, but read nothing."""
        update = frame(event("session.update", session={"type": "transcription"}).encode())
        started = time.monotonic()
        async with self._connection(is_small=True) as (_, writer):
            writer.transport.pause_reading()
            while time.monotonic() < started + self._longest:
                for _ in range(500):
                    writer.write(update if rng.random() < 0.5 else frame(b"a" * 125, 9))
                await writer.drain()
                await asyncio.sleep(0.01)
        return "left"

    async def vanish(self, rng: random.Random) -> str:
        """Send part of some speech, then stop reading and sending, but stay connected."""
        async with self._connection(is_small=True) as (_, writer):
            sent = frame(append(rng).encode()) * rng.randrange(4)
            writer.write(sent[: rng.randrange(len(sent) + 1)])
            writer.transport.pause_reading()
            await asyncio.sleep(rng.choice([1.0, self._longest / 4, self._longest]))
        return "left"

    async def abort(self, rng: random.Random) -> str:
        """Send speech, and reset the connection at some point."""
        async with self._connection() as (_, writer):
            for _ in range(rng.randrange(8)):
                writer.write(frame(rng.choice([append(rng), append(rng), COMMIT]).encode()))
                await asyncio.sleep(rng.choice([0, 0.01, 0.1]))
        return "left"

    async def speak(self, rng: random.Random) -> str:
        """Send speech, and wait for the text."""
        async with connect(self._url, compression=None) as client:
            for _ in range(rng.randrange(1, 6)):
                await client.send(append(rng))
                await asyncio.sleep(rng.choice([0, 0.25]))
            await client.send(event("input_audio_buffer.append", audio=AUDIO[-1]))
            await client.send(COMMIT)
            return await self._text(client)

    async def _text(self, client: ClientConnection) -> str:
        async for received in client:
            fields = json.loads(received)
            if fields["type"].endswith(("transcription.completed", "transcription.failed", "error")):
                return str(fields.get("error", {}).get("code") or fields["type"].rpartition(".")[2])
        return f"closed with {client.close_code}"

    async def record(self, rng: random.Random) -> str:
        """Send a recording."""
        files = {"file": ("a.wav", rng.choice(RECORDINGS))}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self._port}", timeout=600, verify=NO_TLS) as client:
            response = await client.post("/v1/audio/transcriptions", files=files, data={"sample_len": "3"})
        assert response.status_code in (200, 429), response.text
        return str(response.status_code)

    async def delays(self) -> AsyncIterator[float]:
        """Repeatedly yield the time from a commit to its text, in seconds. Raises AssertionError if there is no text.

        More speech is sent immediately after each commit, so that the client keeps its slot.
        """
        async with connect(self._url, compression=None) as client:
            speech = event("input_audio_buffer.append", audio=AUDIO[-1])
            await client.send(speech)
            while True:
                await asyncio.sleep(0.5)
                started = time.monotonic()
                await client.send(COMMIT)
                await client.send(speech)
                outcome = await asyncio.wait_for(self._text(client), PATIENCE)
                assert outcome == "completed", outcome
                yield time.monotonic() - started


async def attack(server: ServerProcess, count: int, seconds: float, seed: int) -> list[str]:
    """Run `count` random clients for `seconds`. Returns lines with the results. Raises AssertionError."""
    clients = Clients(server.port, min(seconds, 30.0))
    delays = clients.delays()
    before = [await anext(delays) for _ in range(10)]
    until = time.monotonic() + seconds
    tasks = [asyncio.ensure_future(clients.run(1000 * seed + number, until)) for number in range(count)]
    meanwhile: list[float] = []
    megabytes: list[float] = []
    while not all(task.done() for task in tasks):
        meanwhile.append(await anext(delays))
        megabytes.append(server.megabytes())
    await asyncio.gather(*tasks)
    await delays.aclose()  # type: ignore[attr-defined]
    first = max(megabytes[: max(1, len(megabytes) // 4)])
    assert megabytes[-1] < first + GROWTH, megabytes
    return [
        *(f"{number} times {name}" for name, number in sorted(clients.outcomes.items())),
        f"seconds to the text before: {summary(before)}; meanwhile: {summary(meanwhile)}",
        f"{first:.0f} MB in the first quarter, {megabytes[-1]:.0f} MB at the end",
    ]


def summary(seconds: Sequence[float]) -> str:
    median, most = np.quantile(seconds, [0.5, 0.95])
    return f"median {median:.2f}, 95th percentile {most:.2f}, most {max(seconds):.2f}, of {len(seconds)}"


def run(count: int, seconds: float, seed: int) -> Iterator[str]:
    """Run clients against a server with a tiny Whisper. Yields a summary. Raises AssertionError if a check fails."""
    allow_open_files(4 * count)
    with server_process(program=PROGRAM) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        client.get("/health")
        files = server.open_files()
        yield from asyncio.run(attack(server, count, seconds, seed))
        wait_for(lambda: is_idle(client) and server.open_files() <= files)
        assert client.get("/health").json() == {"status": "ok"}
    yield "all slots free, all files closed"
