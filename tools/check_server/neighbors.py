"""Clients that send expensive requests while another client sends small requests.

Each attack runs in a separate process, from a different address. The other client's requests must be answered within
twice their normal time plus one second. Afterwards, threads and memory must recover within five seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median
from typing import Any

import httpx

from benchmarks.server_process import ServerProcess, server_process
from tests.support.frames import UPGRADE, frame
from tests.support.serving import GRAMMAR, NO_TLS

from .clients import GROWTH
from .sockets import COMMIT, PATH, PROGRAM, Clients, event, pcm

ADDRESS = "127.0.0.2"  # the attackers' address
SECONDS = 5.0  # for threads and memory to recover
SIZE = 1_000_000
CLAUSE = "Open the page and read the text of the method and return the value of the property and "
CUE = "\n\n00:00:00.000 --> 00:00:01.000\n"

Request = Callable[[], float]  # returns the seconds it took; raises AssertionError for a wrong answer


def connected(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=1.0, source_address=(ADDRESS, 0))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def flood(sent: bytes, port: int, until: float) -> None:
    """Send frames on a WebSocket as fast as the server reads them. If it is closed, open a new one."""
    while time.monotonic() < until:
        with contextlib.suppress(OSError), connected(port) as client:
            client.sendall(UPGRADE.replace(b"/echo", PATH) + b"\r\n")
            client.recv(1 << 16)
            reader = threading.Thread(target=drain, args=(client,), daemon=True)
            reader.start()
            while time.monotonic() < until and reader.is_alive():
                with contextlib.suppress(TimeoutError):
                    client.sendall(sent)


def drain(client: socket.socket) -> None:
    while True:
        try:
            if not client.recv(1 << 20):
                return
        except TimeoutError:
            continue
        except OSError:
            return


def translate(content: bytes, suffix: str, port: int, until: float) -> None:
    """Translate a file repeatedly."""
    transport = httpx.HTTPTransport(local_address=ADDRESS, verify=NO_TLS)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=transport) as client:
        while (rest := until - time.monotonic()) > 0:
            with contextlib.suppress(httpx.TransportError):
                send_file(client, content, suffix, rest)


def send_file(client: httpx.Client, content: bytes, suffix: str, seconds: float) -> httpx.Response:
    fields, files = {"source": "en", "target": "de"}, {"file": (f"a.{suffix}", content)}
    return client.post("/translate_file", data=fields, files=files, timeout=seconds)


def repeated(text: str) -> bytes:
    return (text * (SIZE // len(text) + 1)).encode()[: SIZE - 1000]


Attack = Callable[[int, float], None]


def socket_attacks() -> Mapping[str, tuple[int, Attack]]:
    """Return the number of clients and their action for each attack, keyed by name."""
    speech = frame(event("input_audio_buffer.append", audio=pcm(0, 0.1)).encode())
    wide = ",".join(f'"k{i}":0' for i in range(SIZE // 10))
    messages = [f'{{"type":"session.update","session":{{{wide}}}}}', f'{{"{"type" * (SIZE // 4)}":1}}']
    return {
        "pings": (8, partial(flood, frame(b"", 9) * 40_000)),
        "pongs": (8, partial(flood, frame(b"", 10) * 40_000)),
        "empty messages": (8, partial(flood, frame(b"") * 40_000)),
        "append and clear": (1, partial(flood, speech + frame(event("input_audio_buffer.clear").encode()))),
        "append and commit": (1, partial(flood, speech + frame(COMMIT.encode()))),
        "wide messages": (8, partial(flood, frame(messages[0].encode()))),
        "long names": (8, partial(flood, frame(messages[1].encode()))),
    }


def text_attacks() -> Mapping[str, tuple[int, Attack]]:
    files = {
        "files of a megabyte": (12, repeated(CLAUSE * 40 + "\n"), "txt"),
        "cues of a megabyte": (4, b"WEBVTT" + CUE.encode() + repeated("<v Mary>Open "), "vtt"),
        "second cues of a megabyte": (4, f"WEBVTT{CUE}Open.{CUE}".encode() + repeated("<i>Open the\n"), "vtt"),
        "nested lists": (4, repeated("- "), "md"),
        "files without words": (2, repeated("1 "), "txt"),
    }
    return {name: (count, partial(translate, content, suffix)) for name, (count, content, suffix) in files.items()}


def attackers(attack: Attack, count: int, port: int, seconds: float, has_begun: Any) -> None:
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=attack, args=(port, until), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    has_begun.set()
    for thread in threads:
        thread.join(max(0.0, until + 1 - time.monotonic()))


def timed(client: httpx.Client, path: str, **fields: str | int) -> float:
    started = time.monotonic()
    response = client.post(path, json=fields) if fields else client.get(path)
    assert response.status_code == 200, (path, response.text)
    return time.monotonic() - started


def file_of_a_line(client: httpx.Client) -> float:
    started = time.monotonic()
    response = send_file(client, b"Open the page.\n", "txt", 600)
    assert response.status_code == 200, response.text
    return time.monotonic() - started


def live_text(port: int) -> float:
    """Return the time from a commit to its text, in seconds."""

    async def one() -> float:
        delays = Clients(port).delays()
        try:
            return await anext(delays)
        finally:
            await delays.aclose()  # type: ignore[attr-defined]

    return asyncio.run(one())


def run(seconds: float, only: str) -> Iterator[str]:
    """Run the attacks whose names contain `only`. Yields a line for each. Raises AssertionError if a check fails."""
    problems = []
    text = ("speculative_decoding", "serve", "--port", "0")
    for program, attacks in ((PROGRAM, socket_attacks()), (text, text_attacks())):
        chosen = {name: attack for name, attack in attacks.items() if only in name}
        if not chosen:
            continue
        options = {} if program is None else {"program": program}
        with (
            server_process(**options) as server,
            httpx.Client(base_url=server.url, timeout=600, verify=NO_TLS) as client,
        ):
            requests: dict[str, Request] = {"health": partial(timed, client, "/health")}
            if program is text:
                timed(client, "/translate", q=(CLAUSE * 20 + "\n") * 8, source="en", target="de")  # fills all caches
                requests |= {
                    "completion": partial(timed, client, "/v1/completions", prompt=GRAMMAR, max_tokens=20),
                    "sentence": partial(timed, client, "/translate", q="Open the page.", source="en", target="de"),
                    "file": partial(file_of_a_line, client),
                }
            else:
                requests["live text"] = partial(live_text, server.port)
            for name, (count, attack) in chosen.items():
                found, line = disturbed(server, requests, count, attack, seconds)
                problems += [f"{name}: {each}" for each in found]
                yield f"{'WRONG' if found else 'right'}: {name}, {count} clients: {line}"
    assert not problems, problems


def growth(server: ServerProcess, threads: int, megabytes: float) -> list[str]:
    """Return the resources that have not recovered."""
    found = {"threads": server.threads() > threads, "memory": server.megabytes() > megabytes + GROWTH}
    return [name for name, has_grown in found.items() if has_grown]


def disturbed(
    server: ServerProcess, requests: Mapping[str, Request], count: int, attack: Attack, seconds: float
) -> tuple[list[str], str]:
    """Time requests before and during an attack. Returns the failures, and a line with the measurements."""
    for request in requests.values():
        request()
    before = {name: median(request() for _ in range(5)) for name, request in requests.items()}
    threads, megabytes = server.threads(), server.megabytes()
    context = multiprocessing.get_context("spawn")
    has_begun = context.Event()
    process = context.Process(target=attackers, args=(attack, count, server.port, seconds, has_begun), daemon=True)
    process.start()
    has_begun.wait()
    until = time.monotonic() + seconds
    time.sleep(1.0)
    slowest = dict.fromkeys(requests, 0.0)
    most = 0
    while time.monotonic() < until:
        for name, request in requests.items():
            slowest[name] = max(slowest[name], request())
            most = max(most, server.threads())
    process.join(2.0)
    process.kill()
    ended = time.monotonic()
    while (grown := growth(server, threads, megabytes)) and time.monotonic() < ended + SECONDS:
        time.sleep(0.1)
    problems = [name for name in requests if slowest[name] > 2 * before[name] + 1] + grown
    times = ", ".join(f"{name} {before[name]:.3f} to {slowest[name]:.2f} s" for name in requests)
    memory = f"{megabytes:.0f} to {server.megabytes():.0f} MB"
    return problems, f"{times}; {threads} to {most} to {server.threads()} threads, {memory}"
