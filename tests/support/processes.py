"""Starts several processes on this machine as `mlx.launch` does.

On Linux, they fork from a process that has imported the package, because imports take half a second.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.support.paths import ROOT

CONTEXT = get_context("forkserver" if sys.platform == "linux" else "spawn")
PRELOADED = [f"speculative_decoding.cli.{name}" for name in ("main", "train", "serve", "convert", "verify")]
if sys.platform == "linux":
    CONTEXT.set_forkserver_preload(PRELOADED)


def launch(
    target: Callable[..., object], *arguments: object, out: Path, said: Path, folder: Path, **variables: str
) -> BaseProcess:
    """Call `target` in a new process.

    out, said: files for its stdout and stderr.
    folder: its current folder.
    variables: additions to its environment.
    """
    environment = {**os.environ, **variables}
    process = CONTEXT.Process(target=_call, args=(target, arguments, out, said, folder, environment))
    process.start()
    return process


def _call(
    target: Callable[..., object],
    arguments: Sequence[object],
    out: Path,
    said: Path,
    folder: Path,
    environment: Mapping[str, str],
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for name, number, path in (("stdout", 1, out), ("stderr", 2, said)):
        stream = path.open("w", buffering=1)
        os.dup2(stream.fileno(), number)
        setattr(sys, name, stream)
    target(*arguments)


def on_all_cores() -> None:
    """Undo the pinning of test workers to a core: these processes wait for each other."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def write_hosts(processes: int, folder: Path) -> Path:
    """Write a host file of `mlx.launch` with free ports of this machine."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(processes)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))  # a free port
        hosts = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in sockets]
    path = folder / "hosts.json"
    path.write_text(json.dumps(hosts))
    return path


def start(processes: int, folder: Path, target: Callable[..., object], *arguments: object) -> list[BaseProcess]:
    """Call `target` in each process. Rank r writes its stdout and stderr to the files out-r and said-r."""
    hosts = write_hosts(processes, folder)
    started = []
    for rank in range(processes):
        launched = {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(rank)} if processes > 1 else {}
        files = {"out": folder / f"out-{rank}", "said": folder / f"said-{rank}"}
        started.append(launch(_on_all_cores, target, arguments, folder=ROOT, **files, **launched))
    return started


def _on_all_cores(target: Callable[..., object], arguments: Sequence[object]) -> None:
    on_all_cores()
    target(*arguments)
