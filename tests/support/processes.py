"""Several processes on this machine, started as `mlx.launch` would start them."""

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
    """What `tests` does for this process is not for those that wait for each other."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def start(processes: int, folder: Path, arguments: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Python with these arguments; what rank r says goes to the files out-r and said-r of the folder."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(processes)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))  # a free port
        hosts = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in sockets]
    (folder / "hosts.json").write_text(json.dumps(hosts))
    started = []
    for rank in range(processes):
        launched = {"MLX_HOSTFILE": str(folder / "hosts.json"), "MLX_RANK": str(rank)} if processes > 1 else {}
        with open(folder / f"out-{rank}", "w") as out, open(folder / f"said-{rank}", "w") as said:
            several = os.environ | launched | {"PYTEST_XDIST_WORKER": ""}  # `tests` leaves them all cores
            pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": said, "preexec_fn": on_all_cores}
            command = [sys.executable, *arguments]
            started.append(subprocess.Popen(command, env=several, cwd=ROOT, text=True, **pipes))
    return started
