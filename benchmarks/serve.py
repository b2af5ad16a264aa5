"""`python -m benchmarks.serve`: compares many clients of a server with one client and a job, with and without drafts.

Requests are bundled prompts, by default with mixed options. Every text must equal the output of `batch` for the same
prompt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from speculative_decoding.cli.common import read_prompts, run, say
from speculative_decoding.cli.parser import Parser, argument_type
from speculative_decoding.cli.verify import bundled_prompts
from speculative_decoding.errors import InputError
from speculative_decoding.sampling.values import Int

from .machine import described, environment, notes, used_by_others
from .server_process import ROOT, server_process

MIXED: Sequence[dict[str, Any]] = (
    {},
    {"max_tokens": 20},
    {"temperature": 1.0, "acceptance": "coupled", "seed": 7},
    {"stop": ["."]},
    {"num_draft_tokens": 5},
)

BASELINE = ("--drafter", "none")
OF_DRAFTS = ("acceptance", "num_draft_tokens")  # options that have no effect without drafts


def requests_of(count: int, options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return prompts taken from all files in turn, each combined with one of the option sets."""
    files = map(read_prompts, bundled_prompts())
    prompts = [prompt for row in zip(*files, strict=False) for prompt in row][:count]
    if len(prompts) < count:
        raise InputError(f"--prompts: too many (got {count}, at most {len(prompts)})")
    return [{"prompt": prompt, **options[number % len(options)]} for number, prompt in enumerate(prompts)]


def job(requests: Sequence[dict[str, Any]], slots: int, folder: Path, *flags: str) -> tuple[list[str], float, int]:
    """Decode requests with `batch`. Returns the texts, the seconds without loading, and the number of tokens.

    flags: Further flags of the command.
    """
    rows = folder / "in.jsonl"
    out = folder / "out.jsonl"
    stats = folder / "stats.json"
    rows.write_text("".join(json.dumps(each) + "\n" for each in requests), encoding="utf-8")
    command = [sys.executable, "-m", "speculative_decoding", "batch", str(rows), "--output", str(out), "--force"]
    command += ["--slots", str(slots), "--stats-json", str(stats), *flags]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    found = json.loads(stats.read_text(encoding="utf-8"))
    texts = [json.loads(line)["text"] for line in out.read_text(encoding="utf-8").splitlines()]
    return texts, found["seconds"], found["generated_tokens"]


def ask(url: str, requests: Sequence[dict[str, Any]], clients: int) -> tuple[list[str], float, int]:
    """Send requests from several clients. Returns the texts, the elapsed seconds, and the number of tokens."""

    def one(client: httpx.Client, request: dict[str, Any]) -> tuple[str, int]:
        answer = client.post("/v1/completions", json=request).raise_for_status().json()
        return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]

    with httpx.Client(base_url=url, timeout=600) as client, ThreadPoolExecutor(clients) as pool:
        started = time.perf_counter()
        found = list(pool.map(lambda request: one(client, request), requests))
        seconds = time.perf_counter() - started
    return [text for text, _ in found], seconds, sum(tokens for _, tokens in found)


def measure(chosen: argparse.Namespace) -> int:
    """Measure and print the speeds. Returns the exit status, which is 1 if a text differs from that of `batch`."""
    requests = requests_of(chosen.prompts, [{}] if chosen.same_options else MIXED)
    others = used_by_others()
    where = environment()
    clients = chosen.clients
    speeds: dict[str, list[float]] = {}
    wrong = 0
    slots = "--slots", str(clients)
    with (
        tempfile.TemporaryDirectory() as name,
        server_process(*slots) as server,
        server_process(*slots, *BASELINE) as baseline,
    ):
        folder = Path(name)
        expected = job(requests, 1, folder)[0]
        plain = [{key: each[key] for key in each if key not in OF_DRAFTS} for each in requests]
        modes: dict[str, Callable[[], tuple[list[str], float, int]]] = {
            f"{clients} clients": lambda: ask(server.url, requests, clients),
            f"{clients} clients, without drafts": lambda: ask(baseline.url, plain, clients),
            "1 client": lambda: ask(server.url, requests, 1),
            "1 client, without drafts": lambda: ask(baseline.url, plain, 1),
            f"batch --slots {clients}": lambda: job(requests, clients, folder),
            f"batch --slots {clients}, without drafts": lambda: job(plain, clients, folder, *BASELINE),
        }
        for repeat in range(-1, chosen.repeats):
            say("warm-up" if repeat < 0 else f"repeat {repeat + 1} of {chosen.repeats}")
            for mode, measured in modes.items():
                texts, seconds, tokens = measured()
                differ = sum(one != other for one, other in zip(texts, expected, strict=True))
                wrong += differ
                if differ:
                    say(f"{mode}: {differ} of {len(texts)} texts differ from batch's")
                if repeat >= 0:
                    speeds.setdefault(mode, []).append(tokens / seconds)
    base = statistics.median(speeds["1 client"])
    print("| mode | tokens/s | range | relative to 1 client |\n|---|---|---|---|")
    for mode, values in speeds.items():
        median = statistics.median(values)
        print(f"| {mode} | {median:.1f} | {min(values):.1f} to {max(values):.1f} | {median / base:.2f} |")
    print(f"\n{chosen.prompts} prompts; {wrong} texts differ from batch's; " + described(where))
    print(*notes(where, others, used_by_others(), chosen.repeats), sep="\n")
    return 1 if wrong else 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.serve", description=__doc__)
    for name, default, description in (
        ("--clients", 16, "concurrent clients, and slots of the server"),
        ("--prompts", 400, "number of bundled prompts"),
        ("--repeats", 5, "measured repeats"),
    ):
        parser.add_argument(name, type=argument_type(Int(1)), default=default, metavar="N", help=description)
    parser.add_argument("--same-options", action="store_true", help="default options for all requests")
    chosen = parser.parse_args(argv)
    return run("benchmark", lambda: measure(chosen))


if __name__ == "__main__":
    sys.exit(main())
