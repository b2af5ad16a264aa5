"""Runs random clients against a server process for a long time: `python -m tools.soak_server`.

Clients stream, disconnect, send invalid requests and exceed limits. At the end, this tool checks that

- every request was answered once, and equal requests got equal texts, which are those of `batch`,
- all slots are free, and the text of a probe is unchanged,
- memory and open files have not grown since the first quarter,
- the log has no traceback, and the server exits with status 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import httpx

from speculative_decoding.loading.load import BUNDLED
from tests.support.serving import NO_TLS

PROMPTS = [
    line for path in sorted((BUNDLED.parent / "data").glob("*.txt")) for line in path.read_text().split("\n")[:20]
]
PROBE = {"prompt": PROMPTS[0], "temperature": 1.0, "acceptance": "coupled", "seed": 7, "max_tokens": 30}
FLAGS = (
    "--port",
    "0",
    "--slots",
    "4",
    "--queue",
    "8",
    "--max-prompts",
    "4",
    "--max-body",
    "20000",
    "--max-seconds",
    "60",
)
CLIENTS = 12
GROWTH = 60e6  # bytes of growth that the allocator may cause


class Soak:
    """Sends random requests, counts their outcomes, and compares the texts of equal requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.outcomes: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.texts: dict[str, list[str]] = {}  # by the fields of the request
        self._lock = threading.Lock()

    def request(self, client: httpx.Client, rng: random.Random) -> None:
        name = rng.choice(list(ACTIONS))
        with self._lock:
            self.sent[name] += 1
        outcome = ACTIONS[name](self, client, rng)
        with self._lock:
            self.outcomes[f"{name}: {outcome}"] += 1

    def complete(self, client: httpx.Client, rng: random.Random) -> str:
        fields = fields_of(rng)
        response = client.post("/v1/completions", json=fields)
        if response.status_code == 200:
            self.check_text(fields, [choice["text"] for choice in response.json()["choices"]])
        return checked_status(response.status_code, 200, 429)

    def stream(self, client: httpx.Client, rng: random.Random) -> str:
        fields = fields_of(rng)
        texts = Counter[int]()
        last = ""
        pieces: dict[int, str] = {}
        with client.stream("POST", "/v1/completions", json={**fields, "stream": True}) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    assert last != "data: [DONE]"
                    (choice,) = json.loads(line[6:])["choices"]
                    pieces[choice["index"]] = pieces.get(choice["index"], "") + choice["text"]
                    texts[choice["index"]] += choice["finish_reason"] is not None
                last = line or last
        if response.status_code == 200:
            assert last == "data: [DONE]" and set(texts.values()) == {1}, (last, texts)
            self.check_text(fields, [pieces[index] for index in sorted(pieces)])
        return checked_status(response.status_code, 200, 429)

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
        fields = rng.choice(
            [
                {},
                {"prompt": ""},
                {"prompt": 3},
                {"prompt": "a", "n": 99},
                {"prompt": "a", "x": 1},
                {"prompt": "a " * 3000},
            ]
        )
        return checked_status(
            client.post("/v1/completions", json=fields).status_code, 400, 429
        )  # a full queue rejects requests before they are read

    def malformed(self, client: httpx.Client, rng: random.Random) -> str:
        content = rng.choice([b"{", b"\xff\xfe", b"[" * 5000, b" " * 30_000, os.urandom(100)])
        headers = {"Content-Type": "application/json"}
        return checked_status(client.post("/v1/completions", content=content, headers=headers).status_code, 400, 413)

    def cut(self, client: httpx.Client, rng: random.Random) -> str:
        """Close a connection during its request."""
        with socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2]))) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            if rng.random() < 0.7:
                raw.sendall(b'Content-Length: 500\r\n\r\n{"prompt": "a')
        return "cut"

    def look(self, client: httpx.Client, rng: random.Random) -> str:
        path = rng.choice(["/health", "/metrics", "/v1/models", "/", "/nothing", "/languages"])
        return checked_status(client.get(path).status_code, 200, 404)

    def check_text(self, fields: dict[str, Any], texts: list[str]) -> None:
        key = json.dumps(fields, sort_keys=True)
        with self._lock:
            assert self.texts.setdefault(key, texts) == texts, (fields, texts, self.texts[key])


ACTIONS: dict[str, Callable[[Soak, httpx.Client, random.Random], str]] = {
    name: getattr(Soak, name) for name in ("complete", "stream", "leave", "invalid", "malformed", "cut", "look")
}


def fields_of(rng: random.Random) -> dict[str, Any]:
    """Return one of a few combinations of prompts and options, so that each occurs several times."""
    fields: dict[str, Any] = {"prompt": rng.choice(PROMPTS[:12]), "max_tokens": rng.choice([5, 20])}
    if rng.random() < 0.3:
        fields |= {"temperature": 1.0, "acceptance": "coupled", "seed": rng.randrange(3)}
    if rng.random() < 0.2:
        fields["prompt"] = rng.sample(PROMPTS[:4], 2)
    return fields


def checked_status(status: int, *expected: int) -> str:
    assert status in expected, status
    return str(status)


def usage(pid: int) -> tuple[int, int]:
    """Return the bytes of memory and the number of open files."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def is_idle(client: httpx.Client) -> bool:
    text = client.get("/metrics").text
    return all(f"speculative_decoding_{name} 0.0" in text for name in ("slots_busy", "queue_length"))


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(30_000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("condition not reached")


def soak(requests: int | None, seconds: float | None, seed: int) -> str:
    """Send a number of requests, or send for some time. Returns a summary. Raises AssertionError."""
    command = [sys.executable, "-m", "speculative_decoding.serve", *FLAGS]
    environment = os.environ | {"PYTHONPATH": str(BUNDLED.parent)}
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log, env=environment) as process:
        try:
            return soak_process(process, log, requests, seconds, seed)
        finally:
            process.kill()


def soak_process(
    process: subprocess.Popen[bytes], log: IO[str], requests: int | None, seconds: float | None, seed: int
) -> str:
    url = url_of(process, log)
    with httpx.Client(base_url=url, timeout=600) as client:
        wait_for(lambda: client.get("/health").status_code == 200)
        probe = client.post("/v1/completions", json=PROBE).json()["choices"]
        trial = Soak(url)
        usages: list[tuple[int, int]] = []
        problems: list[BaseException] = []
        started = time.monotonic()
        sent = 0
        while not problems and (sent < requests if requests else time.monotonic() - started < (seconds or 0)):
            part = 10 * CLIENTS if requests is None else min(10 * CLIENTS, requests - sent)
            send_requests(trial, part, seed + sent, problems)
            sent += part
            wait_for(lambda: is_idle(client))
            usages.append(usage(process.pid))
        if problems:
            raise problems[0]
        assert sum(trial.outcomes.values()) == sum(trial.sent.values()) == sent
        assert client.post("/v1/completions", json=PROBE).json()["choices"] == probe
    quarter = max(1, len(usages) // 4)
    memory, files = (max(each[i] for each in usages[:quarter]) for i in (0, 1))
    assert usages[-1][0] < memory + GROWTH, usages
    assert usages[-1][1] <= files + CLIENTS, usages
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 0 and "Traceback" not in text_of(log), text_of(log)[-4000:]
    compared = check_with_batch(trial.texts)
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(trial.outcomes.items()))
    shown = ", ".join(f"{memory / 1e6:.0f} MB and {files} files" for memory, files in usages[quarter - 1 :: quarter])
    return (
        f"{sent} requests: {outcomes}\nafter each quarter: {shown}; all slots free, text of the probe unchanged, "
        f"{compared} texts equal to batch's"
    )


def check_with_batch(texts: dict[str, list[str]]) -> int:
    """Decode the same prompts with `batch`. Returns their number. Raises AssertionError for another text."""
    fields = [json.loads(key) for key in texts]
    prompts = [[each["prompt"]] if isinstance(each["prompt"], str) else each["prompt"] for each in fields]
    lines = [
        json.dumps({**each, "prompt": prompt}) for each, own in zip(fields, prompts, strict=True) for prompt in own
    ]
    command = [sys.executable, "-m", "speculative_decoding", "batch", "-", "--input-format", "jsonl"]
    output = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    expected = [json.loads(line)["text"] for line in output.splitlines()]
    found = [text for own in texts.values() for text in own]
    different = [each for each in zip(lines, expected, found, strict=True) if each[1] != each[2]]
    assert not different, different[:3]
    return len(lines)


def text_of(log: IO[str]) -> str:
    log.seek(0)
    return log.read()


def url_of(process: subprocess.Popen[bytes], log: IO[str]) -> str:
    """Wait until a server has logged its address."""
    wait_for(lambda: process.poll() is not None or "http://" in text_of(log))
    (url,) = re.findall(r"http://[\d.:]+", text_of(log))
    return str(url)


def send_requests(trial: Soak, count: int, seed: int, problems: list[BaseException]) -> None:
    """Send requests from `CLIENTS` threads. Adds exceptions to `problems`."""

    def one(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        try:
            with httpx.Client(base_url=trial.url, timeout=600, verify=NO_TLS) as client:
                for _ in range(number, count, CLIENTS):
                    trial.request(client, rng)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    print(soak(None, 60 * chosen.minutes, chosen.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
