"""Starts the server in a separate process, and reads that process's log, memory usage and open files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx

ROOT = Path(__file__).resolve().parents[1]


class ServerProcess:
    """A server that has loaded its model.

    Attributes:
        url: Its address.
        pid: Its process id.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: IO[str]) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid
        wait_for(lambda: process.poll() is not None or "http://" in self.log)
        addresses = re.findall(r"http://[\d.:]+", self.log)
        assert addresses, f"the server did not start: {self.log[-2000:]}"
        self.url = str(addresses[0])
        wait_for(lambda: httpx.get(f"{self.url}/health").status_code == 200)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def megabytes(self, *, peak: bool = False) -> float:
        """Return the current or peak memory usage of the process."""
        return self._status("VmHWM" if peak else "VmRSS") / 1000

    def threads(self) -> int:
        return self._status("Threads")

    def _status(self, name: str) -> int:
        (line,) = (line for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if line.startswith(name))
        return int(line.split()[1])

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def stop(self) -> None:
        """Stop the process as a supervisor would. It must shut down cleanly, without a traceback in its log."""
        before, fault, after = self.log.partition("Traceback")
        assert self._process.poll() is None and not fault, before[-1000:] + fault + after[:3000]
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(600) == 0 and "Traceback" not in self.log, self.log[-4000:]


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(30_000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("condition not reached within ten minutes")


@contextmanager
def server_process(
    *flags: str, program: Sequence[str] = ("speculative_decoding", "serve", "--port", "0")
) -> Iterator[ServerProcess]:
    """Run a server with these flags. Raises `AssertionError` if the server does not start or shut down cleanly."""
    command = [sys.executable, "-m", *program, *flags]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log, env=environment) as process:
        try:
            server = ServerProcess(process, log)
            yield server
            server.stop()
        finally:
            process.kill()
