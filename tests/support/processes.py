"""Starts several processes on this machine as `mlx.launch` does.

On Linux, they fork from a process that has imported the package, because imports take half a second.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import mlx.core as mx

from tests.support.paths import ROOT

CONTEXT = get_context("forkserver" if sys.platform == "linux" else "spawn")
PRELOADED = [f"speculative_decoding.cli.{name}" for name in ("main", "convert", "verify")]
PRELOADED += [f"speculative_decoding.{name}" for name in ("training.command", "server.app")]
PRELOADED.append("tests.support.parallel_process")
if sys.platform == "linux":
    CONTEXT.set_forkserver_preload(PRELOADED)  # ignores those that are missing


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


def join_at_once(started: Sequence[BaseProcess], ports: Sequence[int], may_join: Path) -> None:
    """Let `mlx.distributed.init` connect at its first attempt. MLX waits for a second before another one.

    In MLX's ring, the last rank connects to rank 0 before it listens itself; all others listen first. So the last rank
    waits for the file `may_join`, and the rank that connects to the last one is stopped until that listens.
    """
    before_last = started[-2].pid
    assert before_last is not None
    wait_for_listeners(started, ports[:-1])
    with suppress(ProcessLookupError):  # it has ended
        os.kill(before_last, signal.SIGSTOP)
    try:
        may_join.touch()
        wait_for_listeners(started, ports[-1:])
    finally:
        with suppress(ProcessLookupError):
            os.kill(before_last, signal.SIGCONT)


def wait_for_listeners(started: Sequence[BaseProcess], ports: Sequence[int]) -> None:
    """Wait until processes listen on these ports, or one has ended. Gives up after 10,000 attempts."""
    for _ in range(10_000):
        if listening_ports() >= {*ports} or not all(process.is_alive() for process in started):
            return
        time.sleep(0.001)


def join_when_allowed(may_join: Path) -> None:
    """Let the first call of `mlx.distributed.init` wait for a file."""
    init = mx.distributed.init

    def init_when_allowed(*arguments: Any, **options: Any) -> mx.distributed.Group:
        mx.distributed.init = init
        for _ in range(30_000):  # the process that creates the file may have ended
            if may_join.exists():
                break
            time.sleep(0.001)
        return init(*arguments, **options)

    mx.distributed.init = init_when_allowed


def listening_ports() -> set[int]:
    """Return the TCP ports of this machine on which a process listens."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A"}


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
    is_ordered = sys.platform == "linux" and processes > 1
    may_join = folder / "may-join"
    may_join.unlink(missing_ok=True)
    started = []
    for rank in range(processes):
        launched = {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(rank)} if processes > 1 else {}
        files = {"out": folder / f"out-{rank}", "said": folder / f"said-{rank}"}
        waits_for = may_join if is_ordered and rank == processes - 1 else None
        started.append(launch(_launched, target, arguments, waits_for, folder=ROOT, **files, **launched))
    if is_ordered:
        ports = [int(address.rpartition(":")[2]) for (address,) in json.loads(hosts.read_text())]
        join_at_once(started, ports, may_join)
    return started


def _launched(target: Callable[..., object], arguments: Sequence[object], may_join: Path | None) -> None:
    if may_join is not None:
        join_when_allowed(may_join)
    target(*arguments)
