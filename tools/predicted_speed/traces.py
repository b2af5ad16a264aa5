"""Counts what a recorded round of decoding submits to a GPU, and predicts the time that its dispatches take.

A trace has a line for each dispatch, and lines that start with "---" for commits of command buffers and waits of the
host. Lines that start with "===" name the calls of `mx.eval`. tools/metal/README.md names the emulator that writes
traces. Each dispatch of a small model waits for the one before it, so dispatches take most of such a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .costs import DISPATCH_SECONDS


class RoundCounts(NamedTuple):
    dispatches: int
    command_buffers: int
    syncs: int


def count(lines: Iterable[str]) -> RoundCounts:
    """Count what the lines of a trace submit."""
    found = [line for line in lines if line.strip() and not line.startswith("===")]
    commits = sum(line.startswith("--- commit") for line in found)
    syncs = sum(line.startswith("--- host waits") for line in found)
    return RoundCounts(sum(not line.startswith("---") for line in found), commits, syncs)


def traced_lines(paths: Sequence[Path]) -> Iterator[str]:
    """Yield a table with a row for each trace."""
    yield "| round | dispatches | command buffers | host syncs | predicted time of the dispatches |"
    yield "|---|---|---|---|---|"
    for path in paths:
        found = count(path.read_text(encoding="utf-8").splitlines())
        microseconds = 1e6 * found.dispatches * DISPATCH_SECONDS
        yield f"| {path.stem} | {' | '.join(map(str, found))} | {microseconds:.0f} us |"
