"""`python -m benchmarks.loads FILE`: records how long passes, drafts and rounds take beside other programs.

simulated_devices.py replays the file. Rounds have random draft lengths. The first round of each length and of each
prompt is left out.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from speculative_decoding import Session, load
from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.parser import Parser
from speculative_decoding.decoding.results import Round
from speculative_decoding.draft_length.base import DraftLength
from speculative_decoding.draft_length.costs import ALL_WIDTHS, MAX_WIDTH
from speculative_decoding.errors import writing
from speculative_decoding.runs.places import atomic_write, require_writable

from .machine import described, environment
from .ours import Ids
from .record import MAX_TOKENS, PROMPTS, TARGET
from .tasks import tasks_from_files

SECONDS = 60.0  # per load
TIMINGS = 2  # of each pass, after each prompt
BUSY = "while True: pass"
MEMORY = """
import numpy as np
source = np.ones(1 << 26, np.float32)
target = np.empty_like(source)
while True:
    np.copyto(target, source)
"""
PROGRAMS = {"idle": [], "busy": [BUSY, BUSY], "beside memory traffic": [MEMORY]}


class RandomLength(DraftLength):
    """Drafts any number of tokens."""

    def __init__(self) -> None:
        self._rng = random.Random(0)

    def choose(self, kinds: Sequence[str], limits: Sequence[int]) -> list[int]:
        return [min(limit, self._rng.randrange(MAX_WIDTH)) for limit in limits]

    def describe(self) -> str:
        return "drafts a random number of tokens"


@contextmanager
def beside(programs: Sequence[str]) -> Iterator[None]:
    """Run other Python programs."""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def record(pair: Session, seconds: float) -> dict[str, Any]:
    """Time rounds, passes and drafts in turn."""
    probe = pair.planner.probe()
    rounds: dict[int, list[float]] = defaultdict(list)
    passes: dict[int, list[float]] = defaultdict(list)
    drafts: dict[int, list[float]] = {1: [], 9: []}
    seen: set[int] = set()
    tasks = tasks_from_files((), PROMPTS, MAX_TOKENS, pair.model, pair.tokenizer)
    sessions = [Session(pair.model, Ids(task.sources), pair.draft_model) for task in tasks]
    for width in ALL_WIDTHS:
        probe.pass_seconds(1, width)  # traces it
    end = time.perf_counter() + seconds
    number = 0
    while time.perf_counter() < end:
        for session in sessions:
            found: list[Round] = []
            session.generate(str(number % PROMPTS), num_draft_tokens=RandomLength(), on_round=found.append)
            for each in found[1:]:
                if each.drafted in seen:
                    rounds[each.drafted + 1].append(each.seconds)
                seen.add(each.drafted)
        for width in random.Random(number).sample([*ALL_WIDTHS] * TIMINGS, MAX_WIDTH * TIMINGS):
            passes[width].append(probe.pass_seconds(1, width)[0])
        step, start, _ = probe.draft_seconds(1)
        for steps, own in drafts.items():
            own.append(start + steps * step)
        number += 1

    def sorted_by_width(timings: dict[int, list[float]]) -> dict[int, list[float]]:
        return {width: [round(each, 5) for each in own[:100]] for width, own in sorted(timings.items())}

    return {"rounds": sorted_by_width(rounds), "passes": sorted_by_width(passes), "drafts": sorted_by_width(drafts)}


def record_all(file: Path) -> int:
    require_writable(file, "file")
    pair = load(TARGET, draft=f"{TARGET}-head")
    loads = []
    for name, programs in PROGRAMS.items():
        say(f"{name}: {SECONDS:.0f} s")
        with beside(programs):
            loads.append({"load": name, **record(pair, SECONDS)})
    with writing("file", file):
        atomic_write(file, json.dumps({"comment": described(environment()), "loads": loads}) + "\n")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.loads", description=__doc__)
    parser.add_argument("file", type=Path, help="the file to write")
    file: Path = parser.parse_args(argv).file
    return run("benchmarks.loads", lambda: record_all(file))


if __name__ == "__main__":
    sys.exit(main())
