"""Other people's decoders on the same weights and prompts, each in a process of its own that runs `worker.py`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from speculative_decoding.errors import InputError

from .tasks import Task
from .ways import Output

WORKER = Path(__file__).with_name("worker.py")
THREADS = sorted({1, 2, os.cpu_count() or 1})
ASSISTANT_TOKENS = (1, 3, 5, 8)

Mode = Mapping[str, Any]
# Peer -> row of the table -> the modes that compete for it; each task's fastest is measured. The row's name says in
# which arithmetic.
PEERS: dict[str, dict[str, list[Mode]]] = {
    "hf": {"hf float32": [{"threads": n} for n in THREADS]},
    "hf-assisted": {
        "hf-assisted float32, default": [{"threads": n} for n in THREADS],
        "hf-assisted float32, constant": [
            {"threads": n, "num_assistant_tokens": k} for n in THREADS for k in ASSISTANT_TOKENS
        ],
    },
    "ct2": {f"ct2 {kind}": [{"compute_type": kind, "threads": n} for n in THREADS] for kind in ("float32", "int8")},
}
NEEDS_DRAFT = ("hf-assisted",)
PROCESS_PER_MODE = ("ct2",)  # see its class in worker.py


class Peer:
    """A peer with its processes: one, or one for each mode where modes disturb each other. Started when first used.

    target, draft: exported folders; scratch: a folder for what it makes of them. Raises `InputError` in one line if it
    cannot do what it is asked.
    """

    def __init__(self, name: str, command: Sequence[str], target: Path, draft: Path | None, scratch: Path) -> None:
        self.name = name
        self._start: Callable[[], Worker] = partial(Worker, name, command, target, draft, scratch)
        self._workers: dict[str, Worker] = {}

    @property
    def versions(self) -> dict[str, str]:
        """Of its libraries, once it has been used."""
        return {name: version for worker in self._workers.values() for name, version in worker.versions.items()}

    def decode(self, mode: Mode, task: Task) -> list[Output]:
        key = json.dumps(mode) if self.name in PROCESS_PER_MODE else ""
        if key not in self._workers:
            self._workers[key] = self._start()
        return self._workers[key].decode(mode, task)

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()


class Worker:
    """A process of a peer."""

    def __init__(self, peer: str, command: Sequence[str], target: Path, draft: Path | None, scratch: Path) -> None:
        self.peer = peer
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        try:
            self._process = subprocess.Popen(
                [*command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, encoding="utf-8"
            )
        except OSError as error:
            raise InputError(f"--peer-python {command[0]}: cannot be run ({error.strerror})") from error
        try:
            opening = {"peer": peer, "target": str(target), "draft": None if draft is None else str(draft)}
            self.versions: dict[str, str] = self._ask(opening | {"scratch": str(scratch)})["versions"]
        except BaseException:
            self.close()
            raise

    def decode(self, mode: Mode, task: Task) -> list[Output]:
        request = {"mode": mode, "sources": task.sources, "max_tokens": task.max_tokens, "ends": task.ends}
        request["slots"] = task.slots or 1
        answer = self._ask(request)
        pairs = zip(answer["tokens"], answer["seconds"], strict=True)
        outputs = [Output(tokens, seconds) for tokens, seconds in pairs]
        assert len(outputs) == len(task.sources)
        return outputs

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        try:
            answer = json.loads(line)
        except ValueError:
            self._said.seek(0)
            last = next((text for text in reversed(self._said.read().splitlines()) if text.strip()), "no message")
            answer = {"error": f"its process ended: {last}" if not line else f"no answer but {line!r}"}
        if "error" in answer:
            raise InputError(
                f"--peers {self.peer}: {answer['error']}; install it in the Python that --peer-python names, "
                "or leave this peer out"
            )
        return dict(answer)

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


@dataclass(frozen=True)
class PeerMode:
    """A row of the table: a peer in one mode."""

    peer: Peer
    label: str
    mode: Mode
    temperature: float = 0.0
    num_draft: int = 0
    draft_steps: int | None = None

    @property
    def setting(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.mode.items())

    def decode(self, task: Task) -> Iterator[Output]:
        yield from self.peer.decode(self.mode, task)


def worker_command(python: str | None) -> list[str]:
    return [python or sys.executable, str(WORKER)]


@dataclass(frozen=True)
class Trial:
    """How fast a mode was when the modes of a row competed: ms per token over a few prompts, the better of two."""

    task: str
    label: str
    setting: str
    ms_per_token: float


def tune(
    peer: Peer, rows: Mapping[str, list[Mode]], task: Task, prompts: int = 4
) -> tuple[list[PeerMode], list[Trial]]:
    """For each row the fastest of its modes on the task's first prompts, and everything that was tried."""
    few = replace(task, sources=task.sources[: max(prompts, 2 * (task.slots or 1))])
    chosen, trials = [], []
    for label, modes in rows.items():
        timed = []
        for mode in modes:
            peer.decode(mode, few)  # warm-up
            passes = [peer.decode(mode, few) for _ in range(2)]
            ms = min(1e3 * sum(o.seconds for o in outputs) / sum(len(o.tokens) for o in outputs) for outputs in passes)
            timed.append((ms, PeerMode(peer, label, mode)))
            trials.append(Trial(task.name, label, timed[-1][1].setting, ms))
        chosen.append(min(timed, key=lambda pair: pair[0])[1])
    return chosen, trials
