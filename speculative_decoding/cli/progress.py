"""How far something is that takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .common import say

NOTE_SECONDS = 30.0  # between lines where there is no terminal
Show = Callable[[float, float | None, str], None]


@contextmanager
def progress(*, is_shown: bool = True, may_be_bar: bool = True) -> Iterator[Show]:
    """What to call with how much is done, of how much (None: not known), and what to say of it: a bar at a terminal,
    elsewhere a line every `NOTE_SECONDS`, none for what is done before.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    is_bar, said = is_shown and may_be_bar and sys.stderr.isatty(), time.monotonic()
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=Console(stderr=True), redirect_stdout=False)
    bar.add_task("", total=None)
    (task,) = bar.tasks

    def show(done: float, total: float | None, text: str) -> None:
        nonlocal said
        bar.update(task.id, completed=done, total=total, description=text)
        if is_bar:
            bar.start()  # not before there is something to show, so that an error stands alone
        elif is_shown and time.monotonic() - said >= NOTE_SECONDS:
            said, left = time.monotonic(), task.time_remaining
            say(text + ("" if left is None else f", about {left / 60:.0f} min left"))

    try:
        yield show
    finally:
        if is_bar and bar.live.is_started:
            bar.stop()
