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
    """What to call after each row. size: of the input in bytes, if that is known."""
    if not (is_watched and sys.stderr.isatty()):
        yield notes(size)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
        task = bar.add_task("", total=size)
        yield lambda totals: bar.update(task, completed=totals.input_bytes, description=pace(totals))


def notes(size: int | None) -> Callable[[Totals], None]:
    """A line every `NOTE_SECONDS`, none for a short job."""
    said = time.monotonic()
    began: tuple[float, int] | None = None  # when, and behind which byte

    def show(totals: Totals) -> None:
        nonlocal said, began
        now, done, left = time.monotonic(), totals.input_bytes, ""
        start, first = began = began or (now, done)
        if now - said < NOTE_SECONDS:
            return
        if size is not None and done > first:
            left = f", about {(now - start) * (size - done) / (done - first) / 60:.0f} min left"
        said = now
        say(pace(totals) + left)

    return show


def pace(totals: Totals) -> str:
    accepted = f", accepted {totals.stats.acceptance_rate:.1%}" if totals.stats.drafted_tokens else ""
    errors = f", {totals.errors} errors" if totals.errors else ""
    return f"{totals.lines} lines{errors}, {totals.end_to_end_tps:.1f} tokens/s{accepted}"


def summary(totals: Totals, slots: int) -> str:
    stats, errors = totals.stats, ""
    if totals.errors:
        here = f" (in this run first at line {', '.join(map(str, totals.error_lines))})" if totals.error_lines else ""
        errors = f", {totals.errors} of them errors{here}"
    text = (
        f"{totals.lines} lines{errors}; {stats.generated_tokens} tokens of {totals.rows} rows in {totals.seconds:.1f} s"
    )
    if totals.rows:
        text += (
            f"\nfirst token after {totals.mean_time_to_first_token:.3f} s on average, "
            f"of all {min(slots, totals.rows)} slots after {totals.batch_time_to_first_token:.3f} s"
            f"\ndecoding {totals.decode_tps:.1f} tokens/s, end to end {totals.end_to_end_tps:.1f} tokens/s"
            f"\naccepted {stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens "
            f"({stats.acceptance_rate:.1%}), {totals.accepted_per_target_call:.2f} per target call"
            f"\n{stats.target_calls} iterations, {stats.tokens_per_target_call:.2f} tokens each"
            f"\nencode {totals.encode_seconds:.3f} s, decode {totals.decode_seconds:.3f} s; "
            f"peak memory {stats.peak_memory_bytes / 1e9:.2f} GB"
        )
    if not stats.lossless:
        text += (
            "\nLOSSY: delta accepts tokens that the target alone would not write; "
            f"measured price {stats.delta_total_variation:.4f} per token"
        )
    return text
