"""A fake scheduler, and jobs that use it."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from speculative_decoding.decoding.results import GenerationResult, GenerationStats
from speculative_decoding.jobs import Job, JobTotals, ResumableOutput, parse_line, read_lines
from speculative_decoding.jobs.command import RowScheduler
from speculative_decoding.rows.scheduling import BatchResult

SETTINGS = {"temperature": 0.0, "stop": ["x"]}
Choose = Callable[[list[int]], int]  # selects the next row to finish


def first(rows: list[int]) -> int:
    return rows[0]


def last(rows: list[int]) -> int:
    """Finish the oldest row last."""
    return rows[-1]


def at_random() -> Choose:
    return random.Random(1).choice


class FakeScheduler:
    """Reverses prompts. A prompt that contains "too long" becomes an error.

    Args:
        choose: The order in which rows are finished.
        slots: Rows to work on at once.
        seconds: Time per row.
    """

    def __init__(self, choose: Choose = first, slots: int = 4, seconds: float = 0.0) -> None:
        self._choose, self._slots, self._seconds = choose, slots, seconds
        self._prompts: dict[int, str] = {}

    @property
    def running(self) -> int:
        return len(self._prompts)

    @property
    def waiting(self) -> int:
        return 0

    @property
    def wants_more(self) -> bool:
        return len(self._prompts) < self._slots

    @property
    def is_idle(self) -> bool:
        return not self._prompts

    def submit(self, item: tuple[int, Mapping[str, Any]]) -> Iterable[BatchResult[GenerationResult]]:
        number, fields = item
        self._prompts[number] = fields["prompt"]
        return []

    def step(self) -> Iterable[BatchResult[GenerationResult]]:
        time.sleep(self._seconds)
        number = self._choose(list(self._prompts))
        prompt = self._prompts.pop(number)
        is_long = "too long" in prompt
        return [BatchResult(number, None if is_long else result_of(prompt), "too long" if is_long else None)]

    def cancel(self, number: int) -> None:
        self._prompts.pop(number, None)


def result_of(prompt: str) -> GenerationResult:
    count = len(prompt.split()) + 1
    stats = GenerationStats(
        prompt_tokens=count,
        generated_tokens=count,
        target_calls=2,
        drafted_tokens=6,
        accepted_tokens=count - 2,
        encode_seconds=0.5,
        decode_seconds=1.5,
        time_to_first_token=0.5 + count / 10,
    )
    return GenerationResult(prompt[::-1], list(range(count)), "stop", stats)


class Pipe(io.BytesIO):
    """A file that cannot seek."""

    def seekable(self) -> bool:
        return False


def run_job(
    path: Path,
    content: bytes,
    scheduler: RowScheduler | None = None,
    row: Callable[[Mapping[str, Any]], Any] = lambda fields: fields,
    *,
    format: str = "text",
    settings: Mapping[str, Any] = SETTINGS,
    resume: bool = False,
    force: bool = False,
    source: type[io.BytesIO] = io.BytesIO,
    after_row: Callable[[ResumableOutput], None] = lambda output: None,
) -> JobTotals:
    with ResumableOutput.open(path, settings, resume=resume, force=force) as output:
        lines = output.remaining(read_lines(source(content)), "input")
        totals = JobTotals(lines=output.lines, errors=output.errors)
        job = Job(
            lines,
            partial(parse_line, format=format),
            scheduler or FakeScheduler(),
            output.write,
            slots=4,
            row=row,
            totals=totals,
        )
        output.begin()
        for _ in job.run():
            after_row(output)
    return job.totals


def sample_input(count: int) -> bytes:
    """Return lines of many lengths, some blank, some that become errors."""
    rng = random.Random(5)
    lines = [" ".join("wört" for _ in range(rng.randrange(9))) for _ in range(count)]
    return "\n".join("too long" if i % 11 == 3 else line for i, line in enumerate(lines)).encode()
