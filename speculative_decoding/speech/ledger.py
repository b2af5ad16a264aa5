"""The ledger of a folder of transcripts: its log (`runs/log.py`), which stays, so that a run writes only missing ones.

Each record is a recording: its path, size and time of change, the names of outputs with their hashes and those of the
settings, and a status. A record "writing" is on disk before the first of its outputs, and "done" follows the last.
Settings belong to an output, so there are none for the whole log, and a line that is not a record, such as one of a
later version, costs only its recording.
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
    """A recording as it was when a run began. path: relative to the folder of transcripts."""

    path: str
    size: int
    mtime_ns: int


class Written(NamedTuple):
    """An output of a run. settings: a hash of everything that its content depends on except the recording."""

    settings: str
    sha256: str


class Ledger:
    """What is finished in a folder. log: the open log, with `LOG_FORMAT`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._finished: dict[str, tuple[Source, str]] = {}  # by output: its recording and settings
        self._written: set[tuple[str, str]] = set()  # each output, and a hash that it has had
        for record in log.records(parse_record):
            self._add(*record)

    def finished(self, output: str) -> tuple[Source, str] | None:
        """Return the recording and the settings that an output was written from, or None if it is not complete."""
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
    """Return the complete outputs in a ledger, and the path of each one's recording. Does not lock the ledger."""
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
    """Return the recording, the outputs and the status of a line: no outputs if it is not a record, None at the end."""
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
