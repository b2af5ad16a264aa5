"""Occupies a server with unfinished requests while another client uses it: `python -m tools.attack_server`.

Each attack opens many connections, sends part of a request on each, and opens a new one for each that is closed. The
other client makes a new connection for each request. At the end, this tool checks that

- each of the client's requests got the same text as before the attacks,
- the server closed the connections, and has no more open files than before,
- the log has no traceback.
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
from pathlib import Path
from subprocess import Popen

import httpx

from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.server.connections import allow_open_files
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=20, help="requests of the other client during each attack")
    chosen = parser.parse_args()
    print(attack(chosen.connections, chosen.requests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
