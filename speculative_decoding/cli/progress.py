"""Shows progress: a bar at a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .common import say

LINE_SECONDS = 15.0  # time between progress lines if standard error is not a terminal

ShowProgress = Callable[[float, float | None, str], None]  # amount done, total if known, text


@contextmanager
def progress(*, is_shown: bool = True, may_be_bar: bool = True, prints_above: bool = False) -> Iterator[ShowProgress]:
    """Yield a function that shows progress.

    Args:
        is_shown: False to show nothing.
        may_be_bar: False to print lines even at a terminal.
        prints_above: True if the command also prints to standard output, which then scrolls above the bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    is_bar = is_shown and may_be_bar and sys.stderr.isatty()
    last_line = time.monotonic()
    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=Console(stderr=True), redirect_stdout=prints_above and sys.stdout.isatty())
    bar.add_task("", total=None)
    (task,) = bar.tasks

    def show(done: float, total: float | None, text: str) -> None:
        nonlocal last_line
        bar.update(task.id, completed=done, total=total, description=text)
        if is_bar:
            bar.start()  # started on the first update, so that an earlier error leaves no empty bar
        elif is_shown and time.monotonic() - last_line >= LINE_SECONDS:
            last_line = time.monotonic()
            left = "" if task.time_remaining is None else f", about {task.time_remaining / 60:.0f} min left"
            say(text + left)

    try:
        yield show
    finally:
        if is_bar and bar.live.is_started:
            bar.stop()
