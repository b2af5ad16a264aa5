"""A job: lines in, records out, in the same order and in bounded memory. Knows nothing of models, files and screens.

`decode` reads ahead and finishes lines in any order, so finished records wait here for their turn. If one line takes so
long that a whole window waits for it, the input of `decode` ends early. `decode` then finishes what it has, and is
called again for the following lines. So the lines read ahead and the waiting records never exceed a window.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from typing import Any

from ..cli.lines import InputLine
from ..decoding.results import BatchResult, GenerationResult
from ..decoding.stats import GenerationStats
from ..speech.segments import Segment
from ..speech.transcription import Transcription
from .input import DRAFT_COUNTS, ParsedLine

WINDOW_BYTES = 2**26


@dataclass(frozen=True)
class RecordingResult:
    """The transcript of a recording, or why there is none; see `BatchResult`."""

    index: int
    result: Transcription | None
    error: str | None = None


# Decodes mappings from "prompt" or "audio" and option names to values. The indices of the results count from 0.
DecodeRows = Callable[[Iterator[Mapping[str, Any]]], Iterable[BatchResult | RecordingResult]]


@dataclass
class JobTotals:
    """What a job has done so far. Times are wall-clock seconds.

    `lines`, `errors` and `input_bytes` include earlier runs of a resumed job. All other fields are of this run only.
    """

    lines: int = 0
    errors: int = 0
    error_lines: list[int] = field(default_factory=list)  # the first five
    input_bytes: int = 0  # size of the finished lines
    rows: int = 0  # decoded lines
    seconds: float = 0.0
    first_token_seconds: float = 0.0  # summed over rows
    cut: int = 0  # rows that ended at max_tokens
    stats: GenerationStats = field(default_factory=GenerationStats)

    def add(self, result: GenerationResult | Transcription) -> None:
        self.rows += 1
        self.stats.add(result.stats)
        self.first_token_seconds += result.stats.time_to_first_token
        self.cut += isinstance(result, GenerationResult) and result.finish_reason == "length"

    @property
    def mean_time_to_first_token(self) -> float:
        return ratio(self.first_token_seconds, self.rows)

    @property
    def end_to_end_tps(self) -> float:
        """Generated tokens per second of the whole job."""
        return ratio(self.stats.generated_tokens, self.seconds)

    @property
    def decode_tps(self) -> float:
        """Generated tokens per second of decoding, all slots together."""
        return ratio(self.stats.generated_tokens, self.decode_seconds)

    @property
    def encode_seconds(self) -> float:
        return self.stats.encode_seconds * self._overlap_factor

    @property
    def decode_seconds(self) -> float:
        return self.stats.decode_seconds * self._overlap_factor

    @property
    def _overlap_factor(self) -> float:
        """Scales the summed times of rows, which overlap when they share a batch, to the time of the job."""
        return min(1.0, ratio(self.seconds, self.stats.encode_seconds + self.stats.decode_seconds))

    def as_dict(self) -> dict[str, Any]:
        """Return the totals for JSON. `iterations` counts the rounds of each row, although rows share passes."""
        per_row = ("time_to_first_token", "total_variation", "generation_tps")
        totals = {name: value for name, value in self.stats.as_dict().items() if name not in per_row}
        counts = ("lines", "errors", "rows", "cut")
        times = ("seconds", "mean_time_to_first_token", "encode_seconds", "decode_seconds")
        totals |= {name: getattr(self, name) for name in (*counts, *times, "decode_tps", "end_to_end_tps")}
        totals["iterations"] = self.stats.target_calls
        return totals


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@dataclass
class Job:
    """Decodes the lines of a file and writes one record for each.

    Args:
        lines: The remaining lines; the first is number `totals.lines + 1`.
        parse: Makes a prompt with options of a line.
        decode: Decodes such prompts, possibly in another order.
        write: Takes each record and its line, in the order of the lines.
        slots: Rows that `decode` works on at once.
        with_draft_counts: Whether records contain draft counts. They may if the counts are the same in each run.
        totals: Totals of earlier runs, updated in place.
    """

    lines: Iterator[InputLine]
    parse: Callable[[InputLine], ParsedLine]
    decode: DecodeRows
    write: Callable[[bytes, InputLine], None]
    _: KW_ONLY
    slots: int = 8
    with_draft_counts: bool = True
    totals: JobTotals = field(default_factory=JobTotals)

    def __post_init__(self) -> None:
        self._window = max(256, 64 * self.slots)  # lines
        self._decoding: dict[int, ParsedLine] = {}  # by the index that `decode` gives them
        self._finished: dict[int, tuple[bytes, InputLine, bool]] = {}  # line number -> record, line, is an error
        self._last_read = self.totals.lines  # line number
        self._pending_bytes = 0  # of lines that are read but not written
        self._at_end = False

    def run(self) -> Iterator[JobTotals]:
        """Run the job. Yields the totals after each row; it is the same object each time."""
        started = time.perf_counter()
        while not self._at_end:
            for answer in self.decode(self._prompts()):
                parsed = self._decoding.pop(answer.index)
                if answer.result is not None:
                    self.totals.add(answer.result)
                self._finish(parsed, answer.result, answer.error)
                self.totals.seconds = time.perf_counter() - started
                yield self.totals
            assert not self._decoding, "decode() returned without an answer for each row"
        self.totals.seconds = time.perf_counter() - started

    def _prompts(self) -> Iterator[Mapping[str, Any]]:
        """Yield prompts for `decode` until the input ends or the window is full."""
        index = count()
        while self._last_read - self.totals.lines < self._window and self._pending_bytes < WINDOW_BYTES:
            line = next(self.lines, None)
            if line is None:
                self._at_end = True
                return
            parsed = self.parse(line)
            self._last_read = line.number
            self._pending_bytes += len(line.content or b"")
            if parsed.fields is None:
                self._finish(parsed, None, parsed.error)
            else:
                self._decoding[next(index)] = parsed
                yield parsed.fields

    def _finish(self, parsed: ParsedLine, result: GenerationResult | Transcription | None, error: str | None) -> None:
        """Make the record of a line, and write all records that are next in order."""
        content = record(parsed, result, error, self.with_draft_counts)
        self._finished[parsed.line.number] = content, parsed.line, error is not None
        totals = self.totals
        while totals.lines + 1 in self._finished:
            content, line, is_error = self._finished.pop(totals.lines + 1)
            self.write(content, line)
            self._pending_bytes -= len(line.content or b"")
            totals.lines = line.number
            totals.input_bytes = line.end
            if is_error:
                totals.errors += 1
                totals.error_lines = [*totals.error_lines, line.number][:5]


def record(
    parsed: ParsedLine,
    result: GenerationResult | Transcription | None,
    error: str | None,
    with_draft_counts: bool = True,
) -> bytes:
    """Return the output of a line. It depends only on the line and its decoding: no times, nothing of other rows."""
    fields: dict[str, Any] = {"line": parsed.line.number, **parsed.carried}
    if error is not None:
        fields["error"] = error
    elif result is None:
        fields |= {"text": "", "finish_reason": "blank", "prompt_tokens": 0, "generated_tokens": 0}
    elif isinstance(result, Transcription):
        segments = [transcript_fields(each) for each in result.segments]
        fields |= {"text": result.text, "language": result.language, "seconds": result.seconds, "segments": segments}
        for name in ("generated_tokens", *(DRAFT_COUNTS if with_draft_counts else ())):
            fields[name] = getattr(result.stats, name)
    else:
        fields |= output_fields(result)
        if result.sequences:
            fields["sequences"] = [output_fields(each) for each in result.sequences]
        if parsed.seed is not None:
            fields["seed"] = parsed.seed
        for name in ("prompt_tokens", "generated_tokens", *(DRAFT_COUNTS if with_draft_counts else ())):
            fields[name] = getattr(result.stats, name)
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def transcript_fields(segment: Segment) -> dict[str, Any]:
    """Return text and times. Probabilities are left out, because their last digits depend on other rows."""
    words = [{"word": word.word, "start": word.start, "end": word.end} for word in segment.words or ()]
    fields = {"start": segment.start, "end": segment.end, "text": segment.text}
    return fields | ({"words": words} if words else {})


def output_fields(result: GenerationResult) -> dict[str, Any]:
    score = {} if result.score is None else {"score": result.score}
    return {"text": result.text, "finish_reason": result.finish_reason, **score}
