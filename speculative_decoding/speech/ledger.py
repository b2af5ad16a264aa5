"""The record of a folder of transcripts: the source of each output, so that a run writes only missing ones.

Each line is a recording: its path, size and time of change, the names of outputs with their hashes and those of the
settings, and a status. A line "writing" is on disk before the first of its outputs, and a line "done" follows the last.
A killed run leaves at most the beginning of a line at the end; after a power failure, the end may be missing or have
zeros. Lines that are not records are skipped, and their recordings are transcribed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoints.json_text import parse_json_object
from ..errors import InputError, Name, writing
from ..loading.atomic_io import open_locked, write_all
from .media_files import folded

VERSION = 1
MAX_LINE_BYTES = 1 << 24  # limits the memory that a damaged file without newlines takes
START = b'{"version": '
WRITING, DONE = "writing", "done"
WAY_OUT = "what is finished is kept; run the same command again to continue"


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
    """A ledger within its context `open`."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self.path = path
        self._file = file
        self._finished: dict[str, tuple[Source, str]] = {}  # by output: its recording and settings
        self._written: set[tuple[str, str]] = set()  # each output, and a hash that it has had
        self._size = 0  # bytes up to the end of the last line
        self._is_writing = False
        self._read()

    @staticmethod
    @contextmanager
    def open(path: Path) -> Iterator[Ledger]:
        """Lock a ledger, or create it. An empty one is removed at the end.

        Raises:
            InputError: The file is in use, cannot be written, or is not a ledger.
        """
        if os.path.lexists(path) and not path.is_file():
            raise another_file(path)
        busy = InputError(f"{path.parent}: another run is writing to it", "output_dir", "wait, or name another folder")
        with writing(Name("output_dir"), path, "name another folder"):
            file = open_locked(path, busy)
        with file:
            try:
                yield Ledger(path, file)
            finally:
                if not os.fstat(file.fileno()).st_size:
                    path.unlink(missing_ok=True)

    def is_finished(self, output: str, source: Source, settings: str) -> bool:
        """Return whether an output was written from this recording with these settings."""
        return self._finished.get(folded(output)) == (source, settings)

    def source_of(self, output: str) -> str | None:
        """Return the path of the recording that an output was written from."""
        source, _ = self._finished.get(folded(output), (None, ""))
        return None if source is None else source.path

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
        fields = {"version": VERSION, **source._asdict()}
        fields |= {"outputs": {name: written._asdict() for name, written in outputs.items()}, "status": status}
        with writing(Name("output_dir"), self.path, WAY_OUT):
            if not self._is_writing:  # cut off the beginning of a line
                self._is_writing = True
                self._file.truncate(self._size)
                self._file.seek(self._size)
            write_all(self._file, json.dumps(fields).encode() + b"\n")
            os.fsync(self._file.fileno())
        self._add(source, outputs, status)

    def _add(self, source: Source, outputs: Mapping[str, Written], status: str) -> None:
        for name, written in outputs.items():
            self._written.add((folded(name), written.sha256))
            self._finished.pop(folded(name), None)
            if status == DONE:
                self._finished[folded(name)] = source, written.settings

    def _read(self) -> None:
        with self.path.open("rb") as file:
            if not START.startswith(file.read(len(START)).rstrip(b"\0")):
                raise another_file(self.path)
            file.seek(0)
            while line := file.readline(MAX_LINE_BYTES):
                if line.endswith(b"\n"):
                    self._size = file.tell()
                if (record := parse_record(line)) is not None:
                    self._add(*record)


def parse_record(line: bytes) -> tuple[Source, dict[str, Written], str] | None:
    """Return the recording, the outputs and the status of a line; None for damage and for other versions."""
    try:
        fields: dict[str, Any] = parse_json_object(line.decode()) if line.endswith(b"\n") else {}
        source = Source(str(fields["path"]), int(fields["size"]), int(fields["mtime_ns"]))
        outputs = {
            name: Written(str(each["settings"]), str(each["sha256"])) for name, each in fields["outputs"].items()
        }
        return (source, outputs, str(fields["status"])) if fields["version"] == VERSION else None
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):  # `InputError` is a ValueError
        return None


def another_file(path: Path) -> InputError:
    way_out = ("name another ", Name("output_dir"), ", or move that file")
    return InputError(f"{path} is needed to record what is finished, but is another file", "output_dir", way_out)
