"""Attacks a server process with unfinished requests or expensive recordings while another client uses it."""

from __future__ import annotations

import contextlib
import selectors
import socket
import tempfile
import threading
import time
import wave
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

from benchmarks.server_process import server_process, wait_for
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.server.connections import allow_open_files
from tests.support.audio import write_audio
from tests.support.frames import UPGRADE
from tests.support.serving import GRAMMAR, NO_TLS

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ATTACKS = {
    "silent": b"",
    "half-sent headers": b"GET /health HTTP/1.1\r\nHos",
    "half-sent upgrades": UPGRADE.replace(b"/echo", b"/v1/realtime"),
    "half-sent bodies": POST + b'Content-Length: 500\r\n\r\n{"prompt": "a',
    "half-sent files": POST.replace(b"/v1/completions", b"/translate_file") + b"Content-Length: 500\r\n\r\n--b",
    "unread refusals": POST + b"Origin: null\r\nContent-Length: 1000000000\r\n\r\n{",
    "overlong bodies": POST + b"Content-Length: 1000000000\r\n\r\n{",
    "endless chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"ffff\r\n" + b" " * 0xFFFF + b"\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost:80, evil.example\r\n\r\n",
}


class Connections:
    """Keeps `count` connections open, sends `sent` on each one, and counts the connections that the server closes."""

    def __init__(self, port: int, count: int, sent: bytes) -> None:
        self._port = port
        self._count = count
        self._sent = sent
        self.closed = 0
        self.is_complete = threading.Event()
        self.stop = threading.Event()

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            try:
                while not self.stop.is_set():
                    missing = self._count - len(selector.get_map())
                    for _ in range(min(missing, 50)):
                        selector.register(self._connect(), selectors.EVENT_READ)
                    if missing <= 50:
                        self.is_complete.set()
                    for key, _ in selector.select(0.01):
                        self._read(selector, key.fileobj)  # type: ignore[arg-type]
            finally:
                for key in list(selector.get_map().values()):
                    key.fileobj.close()  # type: ignore[union-attr]

    def _connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self._port))
        client.setblocking(False)
        with contextlib.suppress(OSError):  # the connection is closed, or its buffer is full
            client.send(self._sent)
        return client

    def _read(self, selector: selectors.BaseSelector, client: socket.socket) -> None:
        try:
            is_open = bool(client.recv(65536))
        except OSError:
            is_open = False
        if not is_open:
            selector.unregister(client)
            client.close()
            self.closed += 1


def occupy(connections: int, requests: int) -> Iterator[str]:
    """Run all attacks; during each, another client sends `requests` requests. Raises AssertionError if a check fails.

    The server must close the connections: at the end, it must not have more files open than before.
    """
    allow_open_files(2 * connections)
    with server_process() as server:
        expected, files = complete(server.url), server.open_files()
        for name, sent in ATTACKS.items():
            attack = Connections(server.port, connections, sent)
            thread = threading.Thread(target=attack.run)
            thread.start()
            slowest = 0.0
            try:
                assert attack.is_complete.wait(600)
                for _ in range(requests):
                    started = time.monotonic()
                    assert complete(server.url) == expected, name
                    slowest = max(slowest, time.monotonic() - started)
            finally:
                attack.stop.set()
                thread.join()
            yield f"{name}: {attack.closed} closed; {requests} other requests right, the slowest in {slowest:.2f} s"
        wait_for(lambda: server.open_files() <= files)
    yield "all files closed, no traceback"


def complete(url: str) -> str:
    with httpx.Client(base_url=url, timeout=60, verify=NO_TLS) as client:
        response = client.post("/v1/completions", json={"prompt": GRAMMAR})
    assert response.status_code == 200, (response.status_code, response.text)
    return str(response.json()["choices"][0]["text"])


FORM = "multipart/form-data; boundary=b"
HEADER = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"'
JFK = BUNDLED.parent / "data" / "jfk.wav"
MAX_MEGABYTES = 1500.0
PAUSE = 0.1  # seconds between an attacker's requests: the test measures the cost of requests, not their rate


def form(content: bytes, header: bytes = b"") -> bytes:
    return HEADER + header + b"\r\n\r\n" + content + b"\r\n--b--"


def recording(folder: Path, name: str, samples: NDArray[np.int16], rate: int = 16000) -> bytes:
    return form(write_audio(folder / name, samples, rate).read_bytes())


def recordings(folder: Path) -> dict[str, tuple[int, Callable[[], bytes]]]:
    """Return the attacks that use recordings: for each, the number of clients and the body that they send."""
    short = np.zeros((1, 60000), np.int16)

    def eight_channels(rate: int) -> bytes:
        return recording(folder, "eight.flac", np.zeros((8, 655350 * 20), np.int16), rate)

    def half_an_hour() -> bytes:
        with wave.open(str(JFK)) as file:
            speech = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        return recording(folder, "long.ogg", np.tile(speech, 1800 * 16000 // speech.size)[None])

    def noise() -> bytes:
        samples = np.random.default_rng(0).normal(scale=3000, size=(1, 600 * 16000))
        return recording(folder, "noise.ogg", samples.astype(np.int16))

    return {
        "a header of 800 kB": (1, lambda: form(b"a", b";a=1" * 200_000)),
        "false boundaries": (1, lambda: form(b"\r\n--bx" * 4_000_000)),
        "25 MB of spaces": (1, lambda: HEADER + b"\r\n\r\n\r\n--b" + b" " * (25 << 20)),
        "25 MB of line breaks": (1, lambda: form(b"\r\n--" * (6 << 20))),
        "1 Hz": (4, lambda: recording(folder, "slow.flac", short, 1)),
        "frames of minutes": (4, lambda: recording(folder, "slower.flac", short, 18)),
        "eight channels at 655,350 Hz": (2, lambda: eight_channels(655350)),
        "eight channels at 192,000 Hz": (2, lambda: eight_channels(192000)),
        "subtitles": (4, lambda: form(b"[00:01.00]a\n" * (2 << 20))),
        "four recordings of half an hour": (4, half_an_hour),
        "eight recordings of half an hour": (8, half_an_hour),
        "noise": (4, noise),
        "half-sent recordings": (20, lambda: b""),
    }


class Sender:
    """Clients that send a body repeatedly until stopped. If it is empty, they send only the beginning of a body."""

    def __init__(self, port: int, count: int, body: bytes) -> None:
        self._port = port
        self._body = body
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(count)]
        self.statuses: Counter[str] = Counter()
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        path = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + FORM.encode()
        size = len(self._body) or 1 << 20
        while not self._stop.is_set():
            with socket.create_connection(("127.0.0.1", self._port)) as client:
                client.settimeout(1.0)
                with contextlib.suppress(OSError):
                    client.sendall(path + b"\r\nContent-Length: %d\r\n\r\n" % size + (self._body or HEADER))
                status = b""
                while not status and not self._stop.is_set():
                    with contextlib.suppress(TimeoutError, ConnectionError):
                        status = client.recv(12) or b"closed"
            time.sleep(PAUSE)
            self.statuses[status[9:].decode() if status[:4] == b"HTTP" else status.decode() or "left"] += 1

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def transcribe(url: str) -> tuple[str, float]:
    """Send a short recording. Returns its text and the time in seconds."""
    started = time.monotonic()
    with httpx.Client(base_url=url, timeout=600, verify=NO_TLS) as client:
        response = client.post("/v1/audio/transcriptions", files={"file": ("a.wav", JFK.read_bytes())})
    assert response.status_code == 200, response.text
    return str(response.json()["text"]), time.monotonic() - started


def burden(model: str, flags: Sequence[str], requests: int, only: str) -> Iterator[str]:
    """Run the attacks of `recordings` whose names contain `only`. Yields a line for each. Raises AssertionError."""
    problems = []
    with tempfile.TemporaryDirectory() as name, server_process("--model", model, *flags) as server:
        transcribe(server.url)
        expected, undisturbed = min((transcribe(server.url) for _ in range(3)), key=lambda found: found[1])
        allowed = 2 * undisturbed + 1
        yield f"undisturbed: {undisturbed:.2f} s, so {allowed:.2f} s are allowed"
        for attack, (count, body) in recordings(Path(name)).items():
            if only not in attack:
                continue
            sender = Sender(server.port, count, body())
            time.sleep(2.0)
            found = [transcribe(server.url) for _ in range(requests)]
            sender.stop()
            slowest = max(seconds for _, seconds in found)
            has_equal_texts = {text for text, _ in found} == {expected}
            megabytes = server.megabytes(peak=True)
            is_right = slowest <= allowed and has_equal_texts and megabytes < MAX_MEGABYTES
            yield (
                f"{'right' if is_right else 'WRONG'}: {attack}, {count} clients: slowest {slowest:.2f} s, "
                f"{megabytes:.0f} MB, {'equal' if has_equal_texts else 'OTHER'} texts, {dict(sender.statuses)}"
            )
            if not is_right:
                problems.append(attack)
    assert not problems, problems
