"""How far a file of prompts has come: a bar at a terminal, elsewhere a line now and then; and its summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..jobs import Totals
from .common import say

NOTE_SECONDS = 30.0  # between notes where there is no terminal


@contextmanager
def progress(size: int | None, *, is_watched: bool) -> Iterator[Callable[[Totals], None]]:
    """size: of the input in bytes, if that is known."""
    if not (is_watched and sys.stderr.isatty()):
        yield Notes(size)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
        task = bar.add_task("", total=size)

        def show(totals: Totals) -> None:
            bar.update(task, completed=totals.input_bytes, description=pace(totals))

        yield show


class Notes:
    """A line every `NOTE_SECONDS`, none for a short job."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._began: tuple[float, int] | None = None
        self._said = time.monotonic()

    def __call__(self, totals: Totals) -> None:
        now = time.monotonic()
        began, first = self._began = self._began or (now, totals.input_bytes)
        if now - self._said < NOTE_SECONDS:
            return
        self._said, left = now, ""
        if self._size is not None and totals.input_bytes > first:
            seconds = (now - began) * (self._size - totals.input_bytes) / (totals.input_bytes - first)
            left = f", about {seconds / 60:.0f} min left"
        say(pace(totals) + left)


def pace(totals: Totals) -> str:
    accepted = f", accepted {totals.stats.acceptance_rate:.1%}" if totals.stats.drafted_tokens else ""
    errors = f", {totals.errors} errors" if totals.errors else ""
    return f"{totals.lines} lines{errors}, {totals.end_to_end_tps:.1f} tokens/s{accepted}"


def summary(totals: Totals, slots: int) -> str:
    stats = totals.stats
    errors = ""
    if totals.errors:
        here = f" (in this run first at line {', '.join(map(str, totals.error_lines))})" if totals.error_lines else ""
        errors = f", {totals.errors} of them errors{here}"
    lines = [
        f"{totals.lines} lines{errors}; {stats.generated_tokens} tokens of {totals.rows} rows in {totals.seconds:.1f} s"
    ]
    if totals.rows:
        lines += [
            f"first token after {totals.mean_time_to_first_token:.3f} s on average, "
            f"of all {min(slots, totals.rows)} slots after {totals.batch_time_to_first_token:.3f} s",
            f"decoding {totals.decode_tps:.1f} tokens/s, end to end {totals.end_to_end_tps:.1f} tokens/s",
            f"accepted {stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens ({stats.acceptance_rate:.1%}), "
            f"{totals.accepted_per_target_call:.2f} per target call",
            f"{stats.target_calls} iterations, {stats.tokens_per_target_call:.2f} tokens each",
            f"encode {totals.encode_seconds:.3f} s, decode {totals.decode_seconds:.3f} s; "
            f"peak memory {stats.peak_memory_bytes / 1e9:.2f} GB",
        ]
    if not stats.lossless:
        lines.append(
            "LOSSY: delta accepts tokens that the target alone would not write; "
            f"measured price {stats.delta_total_variation:.4f} per token"
        )
    return "\n".join(lines)
