"""Random clients against the server as a process, for a time or a number of requests: `python -m tools.soak_server`.

They stream, leave in the middle, send what is wrong and exceed limits. At the end: every request was answered once, and
whole answers are what the same request gave before; all slots are free; the text of a probe is unchanged; memory and
files have not grown since the first quarter; the log has no traceback, and the server ends with status 0.
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
from typing import Any

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
GROWTH = 60e6  # bytes that an allocator may keep


class Soak:
    """outcomes: how requests ended. texts: what each request that says all its randomness gave."""

    def __init__(self, url: str) -> None:
        self.url, self.outcomes, self.sent = url, Counter[str](), Counter[str]()
        self._texts: dict[str, Any] = {}
        self._lock = threading.Lock()

    def request(self, client: httpx.Client, dice: random.Random) -> None:
        name = dice.choice(list(ACTIONS))
        with self._lock:
            self.sent[name] += 1
        outcome = ACTIONS[name](self, client, dice)
        with self._lock:
            self.outcomes[f"{name}: {outcome}"] += 1

    def plain(self, client: httpx.Client, dice: random.Random) -> str:
        fields = fields_of(dice)
        response = client.post("/v1/completions", json=fields)
        if response.status_code == 200:
            self.same(fields, [choice["text"] for choice in response.json()["choices"]])
        return known(response.status_code, 200, 429)

    def stream(self, client: httpx.Client, dice: random.Random) -> str:
        fields, texts, last = fields_of(dice), Counter[int](), ""
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
            self.same(fields, [pieces[index] for index in sorted(pieces)])
        return known(response.status_code, 200, 429)

    def leave(self, client: httpx.Client, dice: random.Random) -> str:
        """Before the answer, or in the middle of it."""
        fields = fields_of(dice) | {"max_tokens": 200, "stream": dice.random() < 0.7}
        try:
            with (
                httpx.Client(base_url=self.url, timeout=dice.choice([0.01, 0.05, 0.3]), verify=NO_TLS) as leaving,
                leaving.stream("POST", "/v1/completions", json=fields) as response,
            ):
                for _ in zip(range(dice.randrange(4)), response.iter_lines(), strict=False):
                    pass
        except httpx.TimeoutException:
            return "left before"
        return "left within"

    def wrong(self, client: httpx.Client, dice: random.Random) -> str:
        fields = dice.choice(
            [
                {},
                {"prompt": ""},
                {"prompt": 3},
                {"prompt": "a", "n": 99},
                {"prompt": "a", "x": 1},
                {"prompt": "a " * 3000},
            ]
        )
        return known(
            client.post("/v1/completions", json=fields).status_code, 400, 429
        )  # where there is no room nobody looks

    def broken(self, client: httpx.Client, dice: random.Random) -> str:
        content = dice.choice([b"{", b"\xff\xfe", b"[" * 5000, b" " * 30_000, os.urandom(100)])
        headers = {"Content-Type": "application/json"}
        return known(client.post("/v1/completions", content=content, headers=headers).status_code, 400, 413)

    def cut(self, client: httpx.Client, dice: random.Random) -> str:
        """A connection that ends within its request."""
        with socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2]))) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            if dice.random() < 0.7:
                raw.sendall(b'Content-Length: 500\r\n\r\n{"prompt": "a')
        return "cut"

    def look(self, client: httpx.Client, dice: random.Random) -> str:
        path = dice.choice(["/health", "/metrics", "/v1/models", "/", "/nothing", "/languages"])
        return known(client.get(path).status_code, 200, 404)

    def same(self, fields: dict[str, Any], texts: list[str]) -> None:
        key = json.dumps(fields, sort_keys=True)
        with self._lock:
            assert self._texts.setdefault(key, texts) == texts, (fields, texts, self._texts[key])


ACTIONS: dict[str, Callable[[Soak, httpx.Client, random.Random], str]] = {
    name: getattr(Soak, name) for name in ("plain", "stream", "leave", "wrong", "broken", "cut", "look")
}


def fields_of(dice: random.Random) -> dict[str, Any]:
    """Of few prompts and options, so that each comes several times; their texts are the same each time."""
    fields: dict[str, Any] = {"prompt": dice.choice(PROMPTS[:12]), "max_tokens": dice.choice([5, 20])}
    if dice.random() < 0.3:
        fields |= {"temperature": 1.0, "acceptance": "coupled", "seed": dice.randrange(3)}
    if dice.random() < 0.2:
        fields["prompt"] = dice.sample(PROMPTS[:4], 2)
    return fields


def known(status: int, *expected: int) -> str:
    assert status in expected, status
    return str(status)


def usage(pid: int) -> tuple[int, int]:
    """Bytes of memory, and open files."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def settled(client: httpx.Client) -> bool:
    text = client.get("/metrics").text
    return all(f"speculative_decoding_{name} 0.0" in text for name in ("slots_busy", "queue_length"))


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(30_000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it never came true")


def soak(requests: int | None, seconds: float | None, seed: int) -> str:
    """Until so many requests were made, or for so long. What to print; raises AssertionError."""
    command = [sys.executable, "-m", "speculative_decoding.serve", *FLAGS]
    environment = os.environ | {"PYTHONPATH": str(BUNDLED.parent)}
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log, env=environment) as process:
        try:
            return besiege(process, log, requests, seconds, seed)
        finally:
            process.kill()


def besiege(process: subprocess.Popen[bytes], log: Any, requests: int | None, seconds: float | None, seed: int) -> str:
    def said() -> str:
        log.seek(0)
        return str(log.read())

    wait_for(lambda: process.poll() is not None or "http://" in said())
    (url,) = re.findall(r"http://[\d.:]+", said())
    with httpx.Client(base_url=url, timeout=600) as client:
        wait_for(lambda: client.get("/health").status_code == 200)
        probe = client.post("/v1/completions", json=PROBE).json()["choices"]
        trial = Soak(url)
        usages, problems = [], list[BaseException]()
        started, made = time.monotonic(), 0
        while not problems and (made < requests if requests else time.monotonic() - started < (seconds or 0)):
            part = 10 * CLIENTS if requests is None else min(10 * CLIENTS, requests - made)
            run_part(trial, part, seed + made, problems)
            made += part
            wait_for(lambda: settled(client))
            usages.append(usage(process.pid))
        if problems:
            raise problems[0]
        assert sum(trial.outcomes.values()) == sum(trial.sent.values()) == made
        assert client.post("/v1/completions", json=PROBE).json()["choices"] == probe
    quarter = max(1, len(usages) // 4)
    memory, files = (max(each[i] for each in usages[:quarter]) for i in (0, 1))
    assert usages[-1][0] < memory + GROWTH, usages
    assert usages[-1][1] <= files + CLIENTS, usages
    process.send_signal(signal.SIGTERM)
    assert process.wait(600) == 0 and "Traceback" not in said(), said()[-4000:]
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(trial.outcomes.items()))
    shown = ", ".join(f"{memory / 1e6:.0f} MB and {files} files" for memory, files in (usages[0], usages[-1]))
    return f"{made} requests: {outcomes}\nat first and at the end: {shown}; all slots free, the probe's text unchanged"


def run_part(trial: Soak, count: int, seed: int, problems: list[BaseException]) -> None:
    """So many requests, by `CLIENTS` threads."""

    def one(number: int) -> None:
        dice = random.Random(seed * 1000 + number)
        try:
            with httpx.Client(base_url=trial.url, timeout=600, verify=NO_TLS) as client:
                for _ in range(number, count, CLIENTS):
                    trial.request(client, dice)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    print(soak(None, 60 * chosen.minutes, chosen.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
