"""Random clients that use a server process for a long time: they stream, disconnect, and send invalid requests."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx

from benchmarks.server_process import server_process, wait_for
from speculative_decoding.loading.load import BUNDLED
from tests.support.serving import NO_TLS

PROMPTS = [
    line for path in sorted((BUNDLED.parent / "data").glob("*.txt")) for line in path.read_text().split("\n")[:20]
]
PROBE = {"prompt": PROMPTS[0], "temperature": 1.0, "acceptance": "coupled", "seed": 7, "max_tokens": 30}
FLAGS = ["--slots", "4", "--queue", "8", "--max-prompts", "4", "--max-body", "20000", "--max-seconds", "60"]
FLAGS += ["--max-output-tokens", "200"]
CLIENTS = 12
GROWTH = 60.0  # megabytes; an allowance for the allocator
INVALID: list[dict[str, Any]] = [
    *({}, {"prompt": ""}, {"prompt": 3}, {"prompt": "a", "n": 99}, {"prompt": "a", "x": 1}, {"prompt": "a " * 3000}),
]


class Clients:
    """Sends random requests, counts their outcomes, and compares the texts of equal requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.outcomes: Counter[str] = Counter()
        self.texts: dict[str, list[str]] = {}  # keyed by the request's fields
        self.files: dict[tuple[str, ...], str] = {}  # keyed by their lines
        self._lock = threading.Lock()

    def request(self, client: httpx.Client, rng: random.Random) -> None:
        actions = [self.complete, self.stream, self.leave, self.invalid, self.malformed, self.cut, self.look, self.file]
        action = rng.choice(actions)
        outcome = action(client, rng)
        with self._lock:
            self.outcomes[f"{action.__name__}: {outcome}"] += 1

    def complete(self, client: httpx.Client, rng: random.Random) -> str:
        fields = fields_of(rng)
        response = client.post("/v1/completions", json=fields)
        if response.status_code == 200:
            self.check_text(fields, [choice["text"] for choice in response.json()["choices"]])
        return checked_status(response, 200, 429)

    def stream(self, client: httpx.Client, rng: random.Random) -> str:
        fields = fields_of(rng)
        ends = Counter[int]()
        last = ""
        pieces: dict[int, str] = {}
        with client.stream("POST", "/v1/completions", json={**fields, "stream": True}) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    assert last != "data: [DONE]"
                    (choice,) = json.loads(line[6:])["choices"]
                    pieces[choice["index"]] = pieces.get(choice["index"], "") + choice["text"]
                    ends[choice["index"]] += choice["finish_reason"] is not None
                last = line or last
        if response.status_code == 200:
            assert last == "data: [DONE]" and set(ends.values()) == {1}, (last, ends)
            self.check_text(fields, [pieces[index] for index in sorted(pieces)])
        return checked_status(response, 200, 429)

    def leave(self, client: httpx.Client, rng: random.Random) -> str:
        """Disconnect before or during the response."""
        fields = fields_of(rng) | {"max_tokens": 200, "stream": rng.random() < 0.7}
        try:
            with (
                httpx.Client(base_url=self.url, timeout=rng.choice([0.01, 0.05, 0.3]), verify=NO_TLS) as leaving,
                leaving.stream("POST", "/v1/completions", json=fields) as response,
            ):
                for _ in zip(range(rng.randrange(4)), response.iter_lines(), strict=False):
                    pass
        except httpx.TimeoutException:
            return "left before the response"
        return "left during the response"

    def invalid(self, client: httpx.Client, rng: random.Random) -> str:
        response = client.post("/v1/completions", json=rng.choice(INVALID))
        return checked_status(response, 400, 429)  # a full queue rejects requests before they are read

    def malformed(self, client: httpx.Client, rng: random.Random) -> str:
        content = rng.choice([b"{", b"\xff\xfe", b"[" * 5000, b" " * 30_000, os.urandom(100)])
        headers = {"Content-Type": "application/json"}
        return checked_status(client.post("/v1/completions", content=content, headers=headers), 400, 413)

    def cut(self, client: httpx.Client, rng: random.Random) -> str:
        """Close a connection during its request."""
        with socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2]))) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            if rng.random() < 0.7:
                raw.sendall(b'Content-Length: 500\r\n\r\n{"prompt": "a')
        return "cut"

    def file(self, client: httpx.Client, rng: random.Random) -> str:
        """Translate a file and download the result. Equal files must have equal translations."""
        lines = rng.sample(PROMPTS[:6], 2)
        sent = client.post(
            "/translate_file", data={"source": "en", "target": "de"}, files={"file": ("a.txt", "\n".join(lines))}
        )
        if sent.status_code == 200:
            found = client.get(sent.json()["translatedFileUrl"])
            assert found.status_code == 200 and found.text.count("\n") == 1, found.text
            with self._lock:
                assert self.files.setdefault(tuple(lines), found.text) == found.text, lines
        return checked_status(sent, 200, 429)

    def look(self, client: httpx.Client, rng: random.Random) -> str:
        path = rng.choice(["/health", "/metrics", "/v1/models", "/", "/nothing", "/languages", "/frontend/settings"])
        return checked_status(client.get(path), 200, 404)

    def check_text(self, fields: dict[str, Any], texts: list[str]) -> None:
        key = json.dumps(fields, sort_keys=True)
        with self._lock:
            assert self.texts.setdefault(key, texts) == texts, (fields, texts, self.texts[key])


def fields_of(rng: random.Random) -> dict[str, Any]:
    """Return one of only a few combinations of prompts and options, so that each occurs several times."""
    fields: dict[str, Any] = {"prompt": rng.choice(PROMPTS[:12]), "max_tokens": rng.choice([5, 20])}
    if rng.random() < 0.3:
        fields |= {"temperature": 1.0, "acceptance": "coupled", "seed": rng.randrange(3)}
    if rng.random() < 0.2:
        fields["prompt"] = rng.sample(PROMPTS[:4], 2)
    return fields


def checked_status(response: httpx.Response, *expected: int) -> str:
    assert response.status_code in expected, response.status_code
    return str(response.status_code)


def run(requests: int | None, seconds: float | None, seed: int) -> Iterator[str]:
    """Send `requests` requests, or send for `seconds`. Yields a summary. Raises AssertionError if a check fails."""
    with server_process(*FLAGS) as server:
        clients, usages = Clients(server.url), []
        with httpx.Client(base_url=server.url, timeout=600) as client:
            probe = client.post("/v1/completions", json=PROBE).json()["choices"]
            started = time.monotonic()
            sent = 0
            while sent < requests if requests else time.monotonic() - started < (seconds or 0):
                part = min(10 * CLIENTS, (requests or 1 << 60) - sent)
                send_requests(clients, part, seed + sent)
                sent += part
                wait_for(lambda: is_idle(client))
                usages.append((server.megabytes(), server.open_files()))
            assert clients.outcomes.total() == sent
            assert client.post("/v1/completions", json=PROBE).json()["choices"] == probe
        quarter = max(1, len(usages) // 4)
        memory, files = (max(each[i] for each in usages[:quarter]) for i in (0, 1))
        assert usages[-1][0] < memory + GROWTH and usages[-1][1] <= files + CLIENTS, usages
    compared = compare_with_batch(clients.texts)
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(clients.outcomes.items()))
    shown = ", ".join(f"{memory:.0f} MB and {files} files" for memory, files in usages[quarter - 1 :: quarter])
    yield f"{sent} requests: {outcomes}"
    yield f"after each quarter {shown}; all slots free, text of the probe unchanged, {compared} texts equal to batch's"


def is_idle(client: httpx.Client) -> bool:
    text = client.get("/metrics").text
    return all(f"speculative_decoding_{name} 0.0" in text for name in ("slots_busy", "queue_length"))


def compare_with_batch(texts: dict[str, list[str]]) -> int:
    """Decode the same prompts with `batch`. Returns their number. Raises AssertionError if a text differs."""
    lines = []
    for key in texts:
        fields = json.loads(key)
        own = [fields["prompt"]] if isinstance(fields["prompt"], str) else fields["prompt"]
        lines += [json.dumps({**fields, "prompt": prompt}) for prompt in own]
    command = [sys.executable, "-m", "speculative_decoding", "batch", "-", "--input-format", "jsonl"]
    output = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    expected = [json.loads(line)["text"] for line in output.splitlines()]
    found = [text for own in texts.values() for text in own]
    different = [each for each in zip(lines, expected, found, strict=True) if each[1] != each[2]]
    assert not different, different[:3]
    return len(lines)


def send_requests(clients: Clients, count: int, seed: int) -> None:
    """Send requests from `CLIENTS` threads. Raises the first exception from any thread."""
    problems: list[BaseException] = []

    def one(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        try:
            with httpx.Client(base_url=clients.url, timeout=600, verify=NO_TLS) as client:
                for _ in range(number, count, CLIENTS):
                    clients.request(client, rng)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
