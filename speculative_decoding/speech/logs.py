"""The logs (`runs/log.py`) of a transcript folder: a ledger of finished outputs, and a log per unfinished recording.

Later runs skip the outputs in the ledger. Each record in the ledger describes a recording. It contains the recording's
path, size and modification time, a status, and the name, the hash and a hash of the settings for each output. A record
with the status "writing" is on disk before the first output is written, and one with the status "done" follows the last
output. Settings are stored for each output, so the ledger as a whole has none. An invalid line, such as one written by
a later version, affects only its own recording.

A later run continues an unfinished recording after the last complete window. The settings of a recording's log are the
state of the recording and a hash of everything that determines the text. Each record is a `ResumePoint` with the
segments of one window. The log is removed once the transcript has been written.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from ..runs.log import Log, LogFormat, parse_line
from ..runs.places import folded
from .segments import Segment, Word
from .transcription import ResumePoint

LOG_FORMAT = LogFormat("output_dir", version=1)
WRITING, DONE = "writing", "done"
SEGMENT_FIELDS = {each.name for each in fields(Segment)} - {"from_draft"}


class Source(NamedTuple):
    """The state of a recording when a run began. path: relative to the transcript folder."""

    path: str
    size: int
    mtime_ns: int


class Written(NamedTuple):
    """An output of a run. settings: a hash of everything that determines its contents, except the recording."""

    settings: str
    sha256: str


class Ledger:
    """The finished outputs in a folder. log: the open log, in `LOG_FORMAT`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._finished: dict[str, tuple[Source, str]] = {}  # output -> its recording and settings
        self._written: set[tuple[str, str]] = set()  # outputs, each with the hash of contents that a run has written
        for record in log.records(parse_outputs):
            self._add(*record)

    def finished(self, output: str) -> tuple[Source, str] | None:
        """Return the recording and the settings of an output, or None if it is not complete."""
        return self._finished.get(folded(output))

    def has_written(self, output: str, sha256: str) -> bool:
        """Return whether a run has written an output with these contents."""
        return (folded(output), sha256) in self._written

    def begin(self, source: Source, outputs: Mapping[str, Written]) -> None:
        """Record outputs before they are written, so that a later run may replace them."""
        self._append(source, outputs, WRITING)

    def finish(self, source: Source, outputs: Mapping[str, Written]) -> None:
        """Record that all outputs are in place."""
        self._append(source, outputs, DONE)

    def _append(self, source: Source, outputs: Mapping[str, Written], status: str) -> None:
        fields = {"version": LOG_FORMAT.version, **source._asdict()}
        fields |= {"outputs": {name: written._asdict() for name, written in outputs.items()}, "status": status}
        self._log.append(fields, sync=True)
        self._add(source, outputs, status)

    def _add(self, source: Source, outputs: Mapping[str, Written], status: str) -> None:
        for name, written in outputs.items():
            self._written.add((folded(name), written.sha256))
            self._finished.pop(folded(name), None)
            if status == DONE:
                self._finished[folded(name)] = source, written.settings


def finished_outputs(path: Path) -> dict[str, str]:
    """Return the complete outputs in a ledger, with the paths of their recordings. Does not lock the ledger."""
    finished: dict[str, str] = {}
    with suppress(OSError), path.open("rb") as file:
        for record in map(parse_outputs, file):
            if record is None:
                break
            source, outputs, status = record
            for name in outputs:
                finished.pop(name, None)
                if status == DONE:
                    finished[name] = source.path
    return finished


def parse_outputs(line: bytes) -> tuple[Source, dict[str, Written], str] | None:
    """Parse a line, and return its recording, outputs and status.

    For an invalid line, there are no outputs. If the line is incomplete, which the last line may be, the result is
    None.
    """
    if not line.endswith(b"\n"):
        return None
    fields = parse_line(line)
    try:
        source = Source(str(fields["path"]), int(fields["size"]), int(fields["mtime_ns"]))
        outputs = {
            name: Written(str(each["settings"]), str(each["sha256"])) for name, each in fields["outputs"].items()
        }
        return source, outputs if fields["version"] == LOG_FORMAT.version else {}, str(fields["status"])
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return Source("", 0, 0), {}, WRITING


class ResumptionLogs:
    """The logs of the unfinished recordings in one folder. Close them at the end of the run.

    Args:
        folder: The transcript folder. This run must have locked its ledger.
        settings: A hash of everything that determines the texts, except the recordings.
    """

    def __init__(self, folder: Path, settings: str) -> None:
        self._folder = folder
        self._settings = settings
        self._open: dict[Source, tuple[ExitStack, Log, ResumePoint | None]] = {}

    def resume_point(self, source: Source) -> ResumePoint | None:
        """Return the point from which to continue, or None to start at the beginning. Raises `InputError`."""
        return self._opened(source)[2] if self._path(source).exists() else None

    def append(self, source: Source, point: ResumePoint) -> None:
        """Record the point after another window. Raises `InputError` if the point cannot be written."""
        stack, log, last = self._opened(source)
        if last is not None and (last.clip, last.seek) == (point.clip, point.seek):
            return
        added = point.segments[len(last.segments) if last is not None else 0 :]
        log.append({**point._asdict(), "segments": [segment_fields(each) for each in added]})
        self._open[source] = stack, log, point

    def remove(self, source: Source) -> None:
        """Remove the log of a finished recording, if there is one."""
        if source in self._open:
            stack, log, _ = self._open.pop(source)
            with stack:
                log.remove()
        else:
            self._path(source).unlink(missing_ok=True)

    def close(self, source: Source) -> None:
        """Close the log of a recording that cannot be transcribed, if it is open."""
        if source in self._open:
            self._open.pop(source)[0].close()

    def close_all(self) -> None:
        for source in [*self._open]:
            self.close(source)

    def _opened(self, source: Source) -> tuple[ExitStack, Log, ResumePoint | None]:
        if source not in self._open:
            settings = {"recording": [*source], "settings": self._settings}
            with ExitStack() as stack:
                log = stack.enter_context(Log.open(self._path(source), LOG_FORMAT, settings, force=True))
                last = deque(points(log), maxlen=1)
                self._open[source] = stack.pop_all(), log, last[0] if last else None
        return self._open[source]

    def _path(self, source: Source) -> Path:
        digest = hashlib.sha256(source.path.encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / f".transcribe.{digest[:16]}.jsonl"


def points(log: Log) -> Iterator[ResumePoint]:
    """Yield the point after each recorded window."""
    segments: list[Segment] = []
    for point in log.records(parse_point):
        segments += point.segments
        yield point._replace(segments=segments)


def segment_fields(segment: Segment) -> dict[str, Any]:
    return {name: value for name, value in asdict(segment).items() if name in SEGMENT_FIELDS}


def parse_point(line: bytes) -> ResumePoint | None:
    """Return a point with only the segments of its own window, or None for a damaged record."""
    record = parse_line(line)
    try:
        segments = [parse_segment(each) for each in record["segments"]]
        numbers = int(record["clip"]), int(record["seek"]), int(record["previous_from"]), float(record["last_speech"])
        return ResumePoint(str(record["language"]), *numbers, segments)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None


def parse_segment(values: dict[str, Any]) -> Segment:
    words = values["words"]
    return Segment(**{**values, "words": None if words is None else [Word(**word) for word in words]})
