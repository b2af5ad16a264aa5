"""Starts several processes on this machine as `mlx.launch` does.

On Linux, they fork from a process that has imported the package, because imports take half a second.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import mlx.core as mx

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
        for thread in map(int, os.listdir("/proc/self/task")):
            os.sched_setaffinity(thread, range(os.cpu_count() or 1))
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def join_at_once(hosts: Path) -> None:
    """Let `mlx.distributed.init` connect at its first attempt. MLX waits for a second before another one.

    In MLX's ring, the last rank connects to rank 0 before it listens itself; all others listen first. So the last rank
    waits until the others listen. Until all have joined, the ranks share a core and use batch scheduling, under which
    no other rank runs between the two steps of the last one.
    """
    ports = [int(address.rpartition(":")[2]) for (address,) in json.loads(hosts.read_text())]
    is_last = int(os.environ["MLX_RANK"]) == len(ports) - 1
    init = mx.distributed.init

    def init_in_order(*arguments: Any, **options: Any) -> mx.distributed.Group:
        mx.distributed.init = init
        for _ in range(10_000 * is_last):  # a rank that has failed never listens
            if listening_ports() >= {*ports[:-1]}:
                break
            time.sleep(0.001)
        try:
            return init(*arguments, **options)
        finally:
            on_all_cores()

    mx.distributed.init = init_in_order


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
    started = []
    for rank in range(processes):
        launched = {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(rank)} if processes > 1 else {}
        files = {"out": folder / f"out-{rank}", "said": folder / f"said-{rank}"}
        started.append(launch(_launched, target, arguments, hosts, folder=ROOT, **files, **launched))
    return started


def _launched(target: Callable[..., object], arguments: Sequence[object], hosts: Path) -> None:
    if sys.platform == "linux" and "MLX_RANK" in os.environ:
        join_at_once(hosts)
    else:
        on_all_cores()
    target(*arguments)
