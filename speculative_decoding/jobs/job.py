"""A job: rows in, records out, in order, in bounded memory. Knows nothing of models, files and screens.

The engine takes rows ahead of those it has finished, and finishes them in any order; what is done waits here until
its turn comes. If the oldest row takes so long that too much waits, the engine is told that the input ends, finishes
what it has, and is started again behind it. So input read ahead and records that wait never exceed a window.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from typing import Any

from ..decoding.results import BatchResult, GenerationResult
from ..decoding.stats import GenerationStats
from .input import DRAFT_COUNTS, InputLine, ParsedLine

WINDOW_LINES_PER_SLOT = 64
WINDOW_LINES = 256  # at least
WINDOW_BYTES = 2**26
SHOWN_ERRORS = 5  # of which the line numbers are kept

DecodeRows = Callable[[Iterator[Mapping[str, Any]]], Iterable[BatchResult]]


@dataclass
class JobTotals:
    """What a job has done. Times are wall-clock seconds; those of rows that were decoded together overlap, so
    `encode_seconds` and `decode_seconds` share out the time of the whole job as the rows' own times divide.

    lines, errors: written, with those of earlier runs if it was resumed. All else is of this run alone.
    error_lines: the first few. input_bytes: how far into the input that reaches.
    cut: rows that ended at max_tokens.
    """

    lines: int = 0
    errors: int = 0
    error_lines: list[int] = field(default_factory=list)
    input_bytes: int = 0
    rows: int = 0
    seconds: float = 0.0
    first_token_seconds: float = 0.0  # summed over rows
    cut: int = 0
    stats: GenerationStats = field(default_factory=GenerationStats)

    def add(self, result: GenerationResult) -> None:
        self.rows += 1
        self.stats.add(result.stats)
        self.first_token_seconds += result.stats.time_to_first_token
        self.cut += result.finish_reason == "length"

    @property
    def mean_time_to_first_token(self) -> float:
        return ratio(self.first_token_seconds, self.rows)

    @property
    def end_to_end_tps(self) -> float:
        """Generated tokens per second of the job."""
        return ratio(self.stats.generated_tokens, self.seconds)

    @property
    def decode_tps(self) -> float:
        """Generated tokens per second of decoding, all slots together."""
        return ratio(self.stats.generated_tokens, self.decode_seconds)

    @property
    def encode_seconds(self) -> float:
        return self.stats.encode_seconds * self._share

    @property
    def decode_seconds(self) -> float:
        return self.stats.decode_seconds * self._share

    @property
    def _share(self) -> float:
        return min(1.0, ratio(self.seconds, self.stats.encode_seconds + self.stats.decode_seconds))

    def as_dict(self) -> dict[str, Any]:
        """For JSON. `iterations` counts a round of each row; rounds of rows that are decoded together share a pass."""
        of_a_row = ("time_to_first_token", "total_variation", "generation_tps")
        times = ("seconds", "mean_time_to_first_token", "encode_seconds", "decode_seconds")
        ours = ("lines", "errors", "rows", "cut", *times, "decode_tps", "end_to_end_tps")
        stats = {name: value for name, value in self.stats.as_dict().items() if name not in of_a_row}
        return stats | {name: getattr(self, name) for name in ours} | {"iterations": self.stats.target_calls}


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@dataclass
class Job:
    """lines: still to do, behind `totals.lines`. totals: to go on from.
    counts: whether records say how the row was drafted: they may where that is the same in every run.
    """

    lines: Iterator[InputLine]
    parse: Callable[[InputLine], ParsedLine]
    engine: DecodeRows
    write: Callable[[bytes, InputLine], None]  # takes records in the order of their lines
    _: KW_ONLY
    slots: int = 8
    counts: bool = True
    totals: JobTotals = field(default_factory=JobTotals)

    def __post_init__(self) -> None:
        self._window = max(WINDOW_LINES, WINDOW_LINES_PER_SLOT * self.slots)
        self._asked: dict[int, ParsedLine] = {}  # by the engine's index
        self._done: dict[int, tuple[bytes, InputLine, bool]] = {}  # by line number: records whose turn has not come
        self._read = self.totals.lines  # up to this line
        self._waiting_bytes = 0  # of the lines that are read, but not written
        self._at_end = False

    def run(self) -> Iterator[JobTotals]:
        """Do it; yield the totals after each row, always the same object."""
        started = time.perf_counter()
        while not self._at_end:
            for answer in self.engine(self._ask()):
                row = self._asked.pop(answer.index)
                if answer.result is not None:
                    self.totals.add(answer.result)
                self._finish(row, answer.result, answer.error)
                self.totals.seconds = time.perf_counter() - started
                yield self.totals
            assert not self._asked, "the engine has left rows without an answer"
        self.totals.seconds = time.perf_counter() - started

    def _ask(self) -> Iterator[Mapping[str, Any]]:
        """Requests for the engine, until the input ends or the window is full."""
        index = count()
        while self._read - self.totals.lines < self._window and self._waiting_bytes < WINDOW_BYTES:
            line = next(self.lines, None)
            if line is None:
                self._at_end = True
                return
            row = self.parse(line)
            self._read, self._waiting_bytes = line.number, self._waiting_bytes + len(line.content or b"")
            if row.request is None:
                self._finish(row, None, row.error)
            else:
                self._asked[next(index)] = row
                yield row.request

    def _finish(self, row: ParsedLine, result: GenerationResult | None, error: str | None) -> None:
        """Make the record, and write all those whose turn has come."""
        self._done[row.line.number] = record(row, result, error, self.counts), row.line, error is not None
        totals = self.totals
        while totals.lines + 1 in self._done:
            content, line, is_error = self._done.pop(totals.lines + 1)
            self.write(content, line)
            self._waiting_bytes -= len(line.content or b"")
            totals.lines, totals.input_bytes = line.number, line.end
            if is_error:
                totals.errors += 1
                totals.error_lines = [*totals.error_lines, line.number][:SHOWN_ERRORS]


def output(result: GenerationResult) -> dict[str, Any]:
    score = {} if result.score is None else {"score": result.score}
    return {"text": result.text, "finish_reason": result.finish_reason, **score}


def record(row: ParsedLine, result: GenerationResult | None, error: str | None, counts: bool = True) -> bytes:
    """A line of output. It depends on nothing but the row and its decoding: no times, nothing of the rows beside it."""
    fields: dict[str, Any] = {"line": row.line.number, **row.carried}
    if error is not None:
        fields["error"] = error
    elif result is None:
        fields |= {"text": "", "finish_reason": "blank", "prompt_tokens": 0, "generated_tokens": 0}
    else:
        names = "prompt_tokens", "generated_tokens", *(DRAFT_COUNTS if counts else ())
        fields |= output(result)
        if result.sequences:
            fields["sequences"] = [output(each) for each in result.sequences]
        fields |= {} if row.seed is None else {"seed": row.seed}
        fields |= {name: getattr(result.stats, name) for name in names}
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
