"""Decodes lines into records, in the same order and with bounded memory. Independent of models and files."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from ..cli.lines import InputLine
from ..decoding.results import GenerationResult, GenerationStats
from ..rows.parts import Window, decode_in_order
from ..rows.scheduling import BatchResult, Progress, Scheduler
from .fields import DRAFT_COUNTS, INPUT_HASH, input_hash
from .input import ParsedLine

MAX_SHOWN = 5  # number of errors whose lines the summary names
WINDOW_BYTES = 2**26  # maximum total size of lines that are read ahead


@dataclass
class JobTotals:
    """The current totals of a job. Times are wall-clock seconds.

    `lines`, `errors`, `first_errors` and `input_bytes` include earlier runs of a resumed job. All other fields cover
    this run only.
    """

    lines: int = 0
    errors: int = 0
    first_errors: dict[int, str] = field(default_factory=dict)  # line number -> error message
    input_bytes: int = 0  # total size of finished lines
    rows: int = 0  # decoded lines
    seconds: float = 0.0
    first_token_seconds: float = 0.0  # summed over rows
    cut: int = 0  # rows that ended at max_tokens
    stats: GenerationStats = field(default_factory=GenerationStats)

    def add(self, result: Any) -> None:
        """Add a `GenerationResult` or a `Transcription`."""
        self.rows += 1
        self.stats.add(result.stats)
        self.first_token_seconds += result.stats.time_to_first_token
        self.cut += isinstance(result, GenerationResult) and result.finish_reason == "length"

    @property
    def mean_time_to_first_token(self) -> float:
        return ratio(self.first_token_seconds, self.rows)

    @property
    def end_to_end_tps(self) -> float:
        """Generated tokens per second over the whole job."""
        return ratio(self.stats.generated_tokens, self.seconds)

    @property
    def decode_tps(self) -> float:
        """Generated tokens per second of decoding, for all slots together."""
        return ratio(self.stats.generated_tokens, self.decode_seconds)

    @property
    def encode_seconds(self) -> float:
        return self.stats.encode_seconds * self._overlap_factor

    @property
    def decode_seconds(self) -> float:
        return self.stats.decode_seconds * self._overlap_factor

    @property
    def _overlap_factor(self) -> float:
        """The ratio of the job's duration to the total time of its rows. Rows in the same batch overlap in time."""
        return min(1.0, ratio(self.seconds, self.stats.encode_seconds + self.stats.decode_seconds))

    def as_dict(self) -> dict[str, Any]:
        """Return the totals for JSON. `iterations` is the sum of all rows' round counts, although rows share passes."""
        per_row = ("time_to_first_token", "total_variation", "generation_tps")
        totals = {name: value for name, value in self.stats.as_dict().items() if name not in per_row}
        counts = ("lines", "errors", "rows", "cut")
        times = ("seconds", "mean_time_to_first_token", "encode_seconds", "decode_seconds")
        totals |= {name: getattr(self, name) for name in (*counts, *times, "decode_tps", "end_to_end_tps")}
        totals["iterations"] = self.stats.target_calls
        return totals


def add_error(first: dict[int, str], number: int, error: object) -> dict[int, str]:
    """Return the job's first errors, at most `MAX_SHOWN`, after adding another error."""
    return first if len(first) == MAX_SHOWN else {**first, number: str(error)}


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@dataclass
class Job:
    """Decodes the lines of a file and writes one record for each.

    Args:
        lines: The remaining lines, beginning with number `totals.lines + 1`.
        parse: Parses a line into its prompt and options.
        scheduler: Decodes numbered rows.
        write: Writes a record. Called in the order of the lines.
        slots: How many rows the scheduler decodes together.
        row: Converts a line's fields ("prompt" or "audio", and options) to an item for the scheduler.
        with_draft_counts: Whether records contain draft counts. Set it only if all runs would produce the same counts.
        totals: The totals of earlier runs, updated in place.
    """

    lines: Iterable[InputLine]
    parse: Callable[[InputLine], ParsedLine]
    scheduler: Scheduler[tuple[int, Any], Progress]
    write: Callable[[bytes], None]
    _: KW_ONLY
    slots: int
    row: Callable[[Mapping[str, Any]], Any] = lambda fields: fields
    with_draft_counts: bool = True
    totals: JobTotals = field(default_factory=JobTotals)

    def run(self) -> Iterator[JobTotals]:
        """Run the job. Yields the same `JobTotals` object after each record."""
        started = time.perf_counter()
        window = Window[ParsedLine](self.slots, lambda parsed: len(parsed.line.content or b""), WINDOW_BYTES)
        for parsed, answer in decode_in_order(self.scheduler, map(self.parse, self.lines), self._submit, window):
            self._write(parsed, answer)
            self.totals.seconds = time.perf_counter() - started
            yield self.totals
        self.totals.seconds = time.perf_counter() - started

    def _submit(self, number: int, parsed: ParsedLine) -> Iterable[Progress]:
        if parsed.fields is None:
            return [BatchResult(number, None, parsed.error)]
        return self.scheduler.submit((number, self.row(parsed.fields)))

    def _write(self, parsed: ParsedLine, answer: BatchResult[Any]) -> None:
        """Write the record for the next line, and update the totals."""
        line, totals = parsed.line, self.totals
        if answer.result is not None:
            totals.add(answer.result)
        self.write(record(parsed, answer.result, answer.error, self.with_draft_counts))
        totals.lines = line.number
        totals.input_bytes = line.end
        if answer.error is not None:
            totals.errors += 1
            totals.first_errors = add_error(totals.first_errors, line.number, answer.error)


def record(parsed: ParsedLine, result: Any, error: str | None, with_draft_counts: bool = True) -> bytes:
    """Return the record for a line. A record depends only on the line and its output, so it contains no durations.

    result: A `GenerationResult` or a `Transcription`; None for an error or a blank prompt.
    """
    fields: dict[str, Any] = {"line": parsed.line.number, **parsed.carried}
    counts: tuple[str, ...] = ()
    if error is not None:
        fields["error"] = error
    elif result is None:
        fields |= {"text": "", "finish_reason": "blank", "prompt_tokens": 0, "generated_tokens": 0}
    elif isinstance(result, GenerationResult):
        fields |= {"prompt": parsed.prompt, **output_fields(result)}
        if result.sequences:
            fields["sequences"] = [output_fields(each) for each in result.sequences]
        if parsed.seed is not None:
            fields["seed"] = parsed.seed
        counts = ("prompt_tokens", "generated_tokens")
    else:
        from .recordings import transcript_fields

        fields |= transcript_fields(result)
        counts = ("generated_tokens",)
    if counts and with_draft_counts:
        counts += DRAFT_COUNTS
    fields |= {name: getattr(result.stats, name) for name in counts}
    fields[INPUT_HASH] = input_hash(parsed.line)
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def output_fields(result: GenerationResult) -> dict[str, Any]:
    score = {} if result.score is None else {"score": result.score}
    return {"text": result.text, "finish_reason": result.finish_reason, **score}


def parse_batch_result(fields: Mapping[str, Any]) -> BatchResult[GenerationResult]:
    """Create a `BatchResult` from its fields."""
    result = fields["result"]
    return BatchResult(fields["index"], None if result is None else parse_result(result), fields["error"])


def parse_result(fields: Mapping[str, Any]) -> GenerationResult:
    """Create a `GenerationResult` from its fields."""
    stats = GenerationStats(**fields["stats"])
    stats.accepted_histogram = Counter({int(length): count for length, count in stats.accepted_histogram.items()})
    for name in ("drafted_by_kind", "accepted_by_kind", "declined_by_kind"):
        setattr(stats, name, Counter(getattr(stats, name)))
    sequences = tuple(parse_result(each) for each in fields["sequences"])
    return GenerationResult(**{**fields, "stats": stats, "sequences": sequences})
