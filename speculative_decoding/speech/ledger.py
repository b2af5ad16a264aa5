"""The ledger of a folder of transcripts: a log (`runs/log.py`) of finished outputs. Later runs skip these.

Each record describes a recording: its path, size and modification time, a status, and for each output its name, its
hash and a hash of its settings. A record with the status "writing" is on disk before the first output is written;
"done" follows the last output. Each output has its own settings, so the log has none. An invalid line, such as one of
a later version, affects only its recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..runs.log import Log, LogFormat, parse_line
from ..runs.places import folded

LOG_FORMAT = LogFormat("output_dir", version=1)
WRITING, DONE = "writing", "done"


class Source(NamedTuple):
    """The state of a recording when a run began. path: relative to the folder of transcripts."""

    path: str
    size: int
    mtime_ns: int


class Written(NamedTuple):
    """An output of a run. settings: a hash of everything that determines its content, except the recording."""

    settings: str
    sha256: str


class Ledger:
    """The finished outputs of a folder. log: the open log, with `LOG_FORMAT`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._finished: dict[str, tuple[Source, str]] = {}  # by output: its recording and settings
        self._written: set[tuple[str, str]] = set()  # outputs, each with a hash of a content that a run has written
        for record in log.records(parse_record):
            self._add(*record)

    def finished(self, output: str) -> tuple[Source, str] | None:
        """Return the recording and the settings of an output, or None if it is not complete."""
        return self._finished.get(folded(output))

    def has_written(self, output: str, sha256: str) -> bool:
        """Return whether a run has written this content."""
        return (folded(output), sha256) in self._written

    def begin(self, source: Source, outputs: Mapping[str, Written]) -> None:
        """Record the outputs before they are written, so that a later run may replace them."""
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
    """Return the complete outputs in a ledger, each with the path of its recording. Does not lock the ledger."""
    finished: dict[str, str] = {}
    with suppress(OSError), path.open("rb") as file:
        for record in map(parse_record, file):
            if record is None:
                break
            source, outputs, status = record
            for name in outputs:
                finished.pop(name, None)
                if status == DONE:
                    finished[name] = source.path
    return finished


def parse_record(line: bytes) -> tuple[Source, dict[str, Written], str] | None:
    """Return the recording, the outputs and the status of a line.

    An invalid line has no outputs. The result is None if the line is incomplete, as the last one may be.
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
