"""Waits for other threads and processes, with a limit after which a test fails."""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENCE = 600.0  # seconds after which a test fails


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until another thread has made a condition true."""
    timer = threading.Event()
    for _ in range(int(seconds * 200)):
        if condition():
            return
        timer.wait(0.005)
    raise AssertionError(f"the condition was not true within {seconds:g} s")
