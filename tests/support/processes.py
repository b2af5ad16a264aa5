"""Starts several processes on this machine as `mlx.launch` does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT


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


def start(processes: int, folder: Path, arguments: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Start Python with these arguments. Rank r writes its stdout and stderr to the files out-r and said-r."""
    hosts = write_hosts(processes, folder)
    started = []
    for rank in range(processes):
        launched = {"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(rank)} if processes > 1 else {}
        with open(folder / f"out-{rank}", "w") as out, open(folder / f"said-{rank}", "w") as said:
            pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": said, "preexec_fn": on_all_cores}
            command = [sys.executable, *arguments]
            started.append(subprocess.Popen(command, env=os.environ | launched, cwd=ROOT, text=True, **pipes))
    return started
