"""Other programs on the same weights and prompts. Each setting runs in a separate process (worker.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from speculative_decoding.errors import InputError

from .interleave import Contender, Output
from .models import Models, exported
from .tasks import Task

WORKER = Path(__file__).with_name("worker.py")
THREADS = sorted({1, 2, os.cpu_count() or 1})
ASSISTED = "hf-assisted"  # requires a draft model and does not support batches
Mode = Mapping[str, Any]
MODES: list[Mode] = [{"threads": n} for n in THREADS]
CONSTANT: list[Mode] = [{**mode, "num_assistant_tokens": k} for mode in MODES for k in (1, 3, 5, 8)]
# Peer -> label in tables, including the data type -> modes to try; the fastest one is measured.
PEERS: dict[str, dict[str, list[Mode]]] = {
    "hf": {"hf float32": MODES},
    ASSISTED: {f"{ASSISTED} float32, default": MODES, f"{ASSISTED} float32, constant": CONSTANT},
    "ct2": {f"ct2 {kind}": [{"compute_type": kind, **mode} for mode in MODES] for kind in ("float32", "int8")},
}


class Worker:
    """The process of a peer. `job` is the first request to worker.py. Raises `InputError` if the peer fails."""

    def __init__(self, command: Sequence[str], job: Mapping[str, Any]) -> None:
        self._peer = job["peer"]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--peer-python {command[0]}: cannot be run ({error.strerror})") from error
        try:
            self.versions: dict[str, str] = self.answer(job)["versions"]
        except BaseException:
            self.close()
            raise

    def decode(self, task: Task) -> list[Output]:
        request = {"sources": task.sources, "max_tokens": task.max_tokens, "slots": task.slots or 1}
        request["beams"] = task.num_beams
        answer = self.answer(request)
        assert len(answer["tokens"]) == len(task.sources)
        return [Output(*pair) for pair in zip(answer["tokens"], answer["seconds"], strict=True)]

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request to worker.py, and return the answer. Raises `InputError` if the answer is an error."""
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = {"error": f"unexpected output {line!r}" if line else "process ended"}
        if "error" in answer:
            way_out = "install it in the Python of --peer-python, or omit this peer"
            raise InputError(f"--peers {self._peer}: {answer['error']}; {way_out}")
        return dict(answer)

    def close(self) -> None:
        self._process.kill()  # there is nothing to save
        with suppress(BrokenPipeError):
            self._process.communicate()


@dataclass(frozen=True)
class Peer(Contender):
    """A peer in its fastest mode."""

    worker: Worker

    def decode(self, task: Task) -> Iterator[tuple[int, Output]]:
        yield from enumerate(self.worker.decode(task))


def fastest_peers(
    name: str, python: str | None, models: Models, tasks: Sequence[Task], scratch: Path, stack: ExitStack
) -> list[list[Peer]]:
    """Return a contender for each task and label of the peer, in the mode that is fastest on the first prompts.

    Args:
        name: A key of `PEERS`.
        python: The interpreter in which the peer is installed; None for this one.
        models: The models to export for the peer.
        tasks: The tasks to decode.
        scratch: A folder for exported weights.
        stack: Stops the peer processes when it is closed.
    """
    job: dict[str, Any] = {"peer": name, "scratch": str(scratch), "ends": tasks[0].ends, "draft": None}
    job["target"] = str(exported(models.target, scratch / "target"))
    if name == ASSISTED and models.assistant is not None:
        job["draft"] = str(exported(models.assistant, scratch / "draft"))

    def start(mode: Mode) -> Worker:
        return Worker([python or sys.executable, str(WORKER)], {**job, "mode": mode})

    found: list[list[Peer]] = [[] for _ in tasks]
    for label, modes in PEERS[name].items():
        times = []
        for mode in modes:
            with closing(start(mode)) as worker:
                times.append([trial_ms(worker, task) for task in tasks])
        workers: dict[int, Worker] = {}
        for peers, of_task in zip(found, zip(*times, strict=True), strict=True):
            best = of_task.index(min(of_task))
            if best not in workers:
                workers[best] = stack.enter_context(closing(start(modes[best])))
            setting = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in modes[best].items())
            peers.append(Peer(label, setting, 0.0, workers[best]))
    return found


def trial_ms(worker: Worker, task: Task) -> float:
    """Return the time per token in ms on the first prompts, in the faster of two runs."""
    few = replace(task, sources=task.sources[: max(4, 2 * (task.slots or 1))])
    _, *runs = (worker.decode(few) for _ in range(3))  # the first run is a warm-up
    return min(1e3 * sum(each.seconds for each in run) / sum(len(each.tokens) for each in run) for run in runs)
