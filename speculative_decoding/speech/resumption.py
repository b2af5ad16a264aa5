"""Logs of unfinished recordings. A later run continues each one after its last complete window.

A log (`runs/log.py`) belongs to one recording in a folder of transcripts. Its settings are the state of the recording
and a hash of everything that determines the text. Each record is a `ResumePoint` with the segments of one window. The
log is removed when the transcript has been written.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..runs.log import Log, LogFormat, parse_line
from .ledger import Source
from .segments import Segment, Word
from .transcription import ResumePoint

LOG_FORMAT = LogFormat("output_dir", version=1)
KNOWN = {each.name for each in fields(Segment)} - {"from_draft"}


class ResumptionLogs:
    """The logs of one folder. Close them at the end of the run.

    Args:
        folder: The folder of transcripts. This run has locked its ledger.
        settings: A hash of everything that determines the texts, except their recordings.
    """

    def __init__(self, folder: Path, settings: str) -> None:
        self._folder = folder
        self._settings = settings
        self._open: dict[Source, tuple[ExitStack, Log, ResumePoint | None]] = {}

    def resume_point(self, source: Source) -> ResumePoint | None:
        """Return where to continue, or None to begin. Raises `InputError`."""
        return self._opened(source)[2] if self._path(source).exists() else None

    def append(self, source: Source, point: ResumePoint) -> None:
        """Record a point after another window. Raises `InputError` if it cannot be written."""
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
    for point in log.records(parse_record):
        segments += point.segments
        yield point._replace(segments=segments)


def segment_fields(segment: Segment) -> dict[str, Any]:
    return {name: value for name, value in asdict(segment).items() if name in KNOWN}


def parse_record(line: bytes) -> ResumePoint | None:
    """Return a point with the segments of its window only; None for a damaged record."""
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
