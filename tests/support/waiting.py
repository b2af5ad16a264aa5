"""Waits for other threads and processes, with a limit after which a test fails. An event loop with its own clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

PATIENCE = 600.0  # seconds after which a test fails


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until another thread has made a condition true."""
    timer = threading.Event()
    for _ in range(int(seconds * 200)):
        if condition():
            return
        timer.wait(0.005)
    raise AssertionError(f"the condition was not true within {seconds:g} s")


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only in `advance`."""

    now = 0.0

    def time(self) -> float:
        return self.now

    async def advance(self, seconds: float = 0.0) -> None:
        """Let time pass, then let all tasks and timers run until they wait."""
        await settle()
        self.now += seconds
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run_manually(test: Callable[[ManualLoop], Coroutine[Any, Any, None]]) -> None:
    """Run a test with such a loop."""
    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, ManualLoop)
        runner.run(test(loop))
