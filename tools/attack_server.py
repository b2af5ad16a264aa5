"""Occupies a server while another client uses it: `python -m tools.attack_server`, or with `--audio MODEL`.

Each attack opens many connections, sends part of a request on each, and opens a new one for each that is closed. The
other client makes a new connection for each request. At the end, this tool checks that

- each of the client's requests got the same text as before the attacks,
- the server closed the connections, and has no more open files than before,
- the log has no traceback.

With `--audio`, the attacks are recordings and forms that cost much, and the other client sends a short recording, again
and again. This tool then checks that each got the same text as before, within twice its undisturbed time and one second
(a measurement: use an idle machine), and that the server stayed below 1.5 GB and ended in order.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import socket
import sys
import tempfile
import threading
import time
import wave
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import Popen

import httpx
import numpy as np
from numpy.typing import NDArray

from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.server.connections import allow_open_files
from tests.support.audio import write_audio
from tests.support.serving import GRAMMAR, NO_TLS
from tools.soak_server import text_of, url_of, wait_for

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
ATTACKS = {
    "silent": b"",
    "half-sent headers": b"GET /health HTTP/1.1\r\nHos",
    "half-sent bodies": POST + b'Content-Length: 500\r\n\r\n{"prompt": "a',
    "unread refusals": POST + b"Origin: null\r\nContent-Length: 1000000000\r\n\r\n{",
    "overlong bodies": POST + b"Content-Length: 1000000000\r\n\r\n{",
    "endless chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"ffff\r\n" + b" " * 0xFFFF + b"\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost:80, evil.example\r\n\r\n",
}


class Attack:
    """Keeps `count` connections open, sends `sent` on each, and counts those that the server closes."""

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
        with contextlib.suppress(OSError):  # closed, or its buffer is full
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


def attack(connections: int, requests: int) -> str:
    """Run all attacks, with a number of requests during each. Returns a summary. Raises AssertionError."""
    allow_open_files(2 * connections)
    command = [sys.executable, "-m", "speculative_decoding.serve", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(BUNDLED.parent)}
    with tempfile.TemporaryFile("w+") as log, Popen(command, stderr=log, env=environment) as process:
        try:
            url = url_of(process, log)
            port = int(url.rpartition(":")[2])
            wait_for(lambda: ask(url, "GET", "/health").status_code == 200)
            expected = complete(url)
            files = Path(f"/proc/{process.pid}/fd")
            before = len(list(files.iterdir()))
            slowest = 0.0
            closed = 0
            for name, sent in ATTACKS.items():
                attacking = Attack(port, connections, sent)
                thread = threading.Thread(target=attacking.run)
                thread.start()
                try:
                    assert attacking.is_complete.wait(600)
                    for _ in range(requests):
                        started = time.monotonic()
                        assert complete(url, name) == expected, name
                        slowest = max(slowest, time.monotonic() - started)
                finally:
                    attacking.stop.set()
                    thread.join()
                closed += attacking.closed
            wait_for(lambda: len(list(files.iterdir())) <= before)
            before_fault, fault, after_fault = text_of(log).partition("Traceback")
            assert process.poll() is None and not fault, before_fault[-1000:] + fault + after_fault[:3000]
        finally:
            process.kill()
    return (
        f"{len(ATTACKS)} attacks of {connections} connections: {closed} closed by the server; "
        f"{len(ATTACKS) * requests} of {len(ATTACKS) * requests} requests of another "
        f"client answered, the slowest in {slowest:.2f} s; 0 tracebacks, all files closed"
    )


def ask(url: str, method: str, path: str, **options: object) -> httpx.Response:
    with httpx.Client(base_url=url, timeout=60, verify=NO_TLS) as client:
        return client.request(method, path, **options)  # type: ignore[arg-type]


def complete(url: str, during: str = "") -> str:
    response = ask(url, "POST", "/v1/completions", json={"prompt": GRAMMAR})
    assert response.status_code == 200, (during, response.status_code, response.text)
    return str(response.json()["choices"][0]["text"])


FORM = "multipart/form-data; boundary=b"
HEADER = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"'
JFK = BUNDLED.parent / "data" / "jfk.wav"
MAX_MEGABYTES = 1500.0
PAUSE = 0.1  # seconds between two requests of an attacker: what its requests cost is measured, not their number


def form(content: bytes, header: bytes = b"") -> bytes:
    return HEADER + header + b"\r\n\r\n" + content + b"\r\n--b--"


def recording(folder: Path, name: str, samples: NDArray[np.int16], rate: int = 16000) -> bytes:
    return form(write_audio(folder / name, samples, rate).read_bytes())


def recordings(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the attacks with recordings: how many clients send what."""
    silence = np.zeros((8, 655350 * 20), np.int16)
    short = np.zeros((1, 60000), np.int16)
    with wave.open(str(JFK)) as file:
        speech = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    long = recording(folder, "long.ogg", np.tile(speech, 1800 * 16000 // speech.size)[None])
    return {
        "a header of 800 kB": (1, form(b"a", b";a=1" * 200_000)),
        "false boundaries": (1, form(b"\r\n--bx" * 4_000_000)),
        "25 MB of spaces": (1, HEADER + b"\r\n\r\n\r\n--b" + b" " * (25 << 20)),
        "25 MB of line breaks": (1, form(b"\r\n--" * (6 << 20))),
        "1 Hz": (4, recording(folder, "slow.flac", short, 1)),
        "frames of minutes": (4, recording(folder, "slower.flac", short, 18)),
        "eight channels at 655,350 Hz": (2, recording(folder, "fast.flac", silence, 655350)),
        "eight channels at 192,000 Hz": (2, recording(folder, "eight.flac", silence, 192000)),
        "subtitles": (4, form(b"[00:01.00]a\n" * (2 << 20))),
        "four recordings of half an hour": (4, long),
        "eight recordings of half an hour": (8, long),
        "noise": (4, recording(folder, "noise.ogg", sound_of_noise(600.0))),
        "half-sent recordings": (20, b""),
    }


def sound_of_noise(seconds: float) -> NDArray[np.int16]:
    return np.random.default_rng(0).normal(scale=3000, size=(1, int(seconds * 16000))).astype(np.int16)


class Sender:
    """Clients that send a body again and again, until they are stopped; without a body, only the beginning of one."""

    def __init__(self, url: str, count: int, body: bytes) -> None:
        self._url = url
        self._body = body
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(count)]
        self.statuses: Counter[str] = Counter()
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        port = int(self._url.rpartition(":")[2])
        path = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + FORM.encode()
        size = len(self._body) or 1 << 20
        while not self._stop.is_set():
            with socket.create_connection(("127.0.0.1", port)) as client:
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
    """Send a short recording. Returns its text and the seconds."""
    started = time.monotonic()
    with httpx.Client(base_url=url, timeout=600, verify=NO_TLS) as client:
        response = client.post("/v1/audio/transcriptions", files={"file": ("a.wav", JFK.read_bytes())})
    assert response.status_code == 200, response.text
    return str(response.json()["text"]), time.monotonic() - started


def attack_audio(model: str, flags: Sequence[str], requests: int, only: str) -> Iterator[str]:
    """Run the attacks with recordings. Yields a line for each. Raises AssertionError at the end."""
    problems = []
    command = [sys.executable, "-m", "speculative_decoding.serve", "--port", "0", "--model", model, *flags]
    environment = os.environ | {"PYTHONPATH": str(BUNDLED.parent)}
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile("w+") as log:
        attacks = recordings(Path(name))
        with Popen(command, stderr=log, env=environment) as process:
            try:
                url = url_of(process, log)
                wait_for(lambda: ask(url, "GET", "/health").status_code == 200)
                transcribe(url)
                expected, undisturbed = min((transcribe(url) for _ in range(3)), key=lambda found: found[1])
                allowed = 2 * undisturbed + 1
                yield f"undisturbed: {undisturbed:.2f} s, so {allowed:.2f} s are allowed"
                for name, (count, body) in attacks.items():
                    if only not in name:
                        continue
                    sender = Sender(url, count, body)
                    time.sleep(2.0)
                    found = [transcribe(url) for _ in range(requests)]
                    sender.stop()
                    slowest = max(seconds for _, seconds in found)
                    texts = {text for text, _ in found}
                    megabytes = peak_megabytes(process.pid)
                    is_right = slowest <= allowed and texts == {expected} and megabytes < MAX_MEGABYTES
                    result = f"{name}, {count} clients: slowest {slowest:.2f} s, {megabytes:.0f} MB, "
                    result += f"{'equal' if texts == {expected} else 'OTHER'} texts, {dict(sender.statuses)}"
                    yield ("right  " if is_right else "WRONG  ") + result
                    if not is_right:
                        problems.append(name)
                process.terminate()
                status = process.wait(60)
                if status or "Traceback" in text_of(log):
                    problems.append(f"the end, with status {status}: {text_of(log)[-2000:]}")
            finally:
                process.kill()
    assert not problems, problems


def peak_megabytes(pid: int) -> float:
    """Return the most memory that a process has had."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audio", metavar="MODEL", help="attack a server with this speech model with recordings")
    parser.add_argument("--slots", default="2", help="of that server")
    parser.add_argument("--only", default="", help="run only attacks whose name contains this")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=20, help="requests of the other client during each attack")
    chosen = parser.parse_args()
    if chosen.audio is not None:
        for line in attack_audio(chosen.audio, ["--slots", chosen.slots], min(chosen.requests, 5), chosen.only):
            print(line, flush=True)
        return 0
    print(attack(chosen.connections, chosen.requests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
