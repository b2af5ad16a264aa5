"""The log of a run: what is finished, so that the next run does only what is missing.

A log is a file of lines. The first line has the settings that the finished work depends on. Each other line is a record
of finished work. A log may do without settings: each record of a folder of recordings has its own, and those of a job
are in a second file, because its log is its output.

To continue, a run locks the log, compares the settings with its own, and reads the records. A killed run leaves at most
the beginning of a line at the end. After a power failure, the end may be missing, and the file may have zeros where
data never reached the disk. The log is cut off at the first line that an interruption can have left, and what followed
is done again. Nothing is changed before the first new record, so a run that is refused leaves the log as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError, Message, Name, writing
from .places import open_locked, write_all

MAX_LINE_BYTES = 1 << 28  # limits the memory that a damaged file without newlines takes

START_OVER = Message("start over with {force}")

Settings = Mapping[str, Any]  # JSON values
Record = TypeVar("Record")


@dataclass(frozen=True)
class LogFormat:
    """What the logs of a command have in common.

    Args:
        option: The option that names the output.
        version: The version of the records.
        continue_with: How to continue after an interruption, for messages.
        start_over: How to start over, for messages.
        start: The first bytes of each log, by which another file is recognized. Empty for a log that is an output.
    """

    option: str
    version: int
    continue_with: str | Message = "run the same command again to continue"
    start_over: str | Message = START_OVER
    start: bytes = b'{"version": '

    @property
    def kept(self) -> str | Message:
        """The way out of a full disk."""
        return Message("what is finished is kept; {continue_with}", continue_with=self.continue_with)

    def header(self, settings: Settings | None) -> str:
        return json.dumps({"version": self.version, "settings": settings}) + "\n"

    def same_settings(self, path: Path, header: Settings, wanted: Settings) -> dict[str, Any]:
        """Return the settings of the header in a file, which may also have "exact". Raises `InputError` for others."""
        settings = header.get("settings")
        if not isinstance(settings, dict) or not isinstance(settings.get("exact"), bool | None):
            raise self.refusal(f"{path} is missing or cannot be read")
        if header.get("version") != self.version:
            raise self.refusal(f"{path} was written by another version", "finish the run with that version")
        if changed := changed_setting(settings, json.loads(json.dumps(wanted))):
            raise self.refusal(f"{path} was written with other settings ({changed})", "give the same settings")
        return settings

    def refusal(
        self, problem: str | Message, way_out: str | Message = "restore it", option: str | None = None
    ) -> InputError:
        """Return the error of a run that cannot be continued. option: what it is about (default: `self.option`)."""
        return InputError(
            problem,
            option or self.option,
            Message("{way_out}, or {start_over}", way_out=way_out, start_over=self.start_over),
        )

    def another_file(self, path: Path) -> InputError:
        way_out = Message("name another {option}, or move that file", option=Name(self.option))
        return InputError(f"{path} is needed to record what is finished, but is another file", self.option, way_out)

    def writing(self, path: Path, *, is_new: bool = False) -> AbstractContextManager[None]:
        """Turn an OSError while `path` is written into an `InputError`. is_new: whether nothing is kept."""
        return writing(
            Name(self.option), path, Message("name another {option}", option=Name(self.option)) if is_new else self.kept
        )


class Log:
    """A log within its context `open`. Read its `records`, then `append`.

    Attributes:
        path: The file.
        is_new: Whether there is no earlier run to continue.
        settings: What all records depend on. "exact" and "comparison" may be added to those of a new log.
    """

    def __init__(self, path: Path, format: LogFormat, reader: BufferedReader, file: FileIO) -> None:
        self.path = path
        self.is_new = os.fstat(file.fileno()).st_size == 0
        self.settings: dict[str, Any] = {}
        self._format = format
        self._reader = reader
        self._file = file
        self._has_header = False
        self._size = 0  # bytes that are kept
        self._is_writing = False

    @staticmethod
    @contextmanager
    def open(path: Path, format: LogFormat, settings: Settings | None = None, *, force: bool = False) -> Iterator[Log]:
        """Lock a log, or create it. Nothing else is changed before `begin` or `append`.

        At the end, even after an exception, all records are on disk. An empty log is removed, unless it is an output
        that was begun.

        Args:
            path: The file.
            format: What it has in common with others.
            settings: Everything that all records depend on, as JSON values; None for a log without settings.
            force: Whether to replace a log with other settings or of another version.

        Raises:
            InputError: The file is in use, cannot be written, is another file, or has other settings.
        """
        if os.path.lexists(path) and not path.is_file():
            raise format.another_file(path)
        way_out = Message("wait, or name another {option}", option=Name(format.option))
        busy = InputError(f"{path}: another run is writing it", format.option, way_out)
        with format.writing(path, is_new=True):
            file = open_locked(path, busy)
        with file, path.open("rb") as reader:
            log = Log(path, format, reader, file)
            try:
                if not format.start.startswith(reader.peek(len(format.start))[: len(format.start)].rstrip(b"\0")):
                    raise format.another_file(path)
                if settings is not None:
                    log._compare(dict(settings), force)
                yield log
            finally:
                log._close()

    def records(self, parse: Callable[[bytes], Record | None]) -> Iterator[Record]:
        """Yield the records of earlier runs. What has not been read before the first `append` is cut off.

        parse: Returns the record of a line, or None if an interruption can have left it.
        """
        for line in iter(partial(self._reader.readline, MAX_LINE_BYTES), b""):
            record = None if self.is_new else parse(line)
            if record is None:
                return
            self._size += len(line)
            yield record

    def begin(self) -> None:
        """Cut off everything after the last record, and write the settings of a new log. All of it is then on disk."""
        with self._format.writing(self.path, is_new=self.is_new):
            if not self._is_writing:
                self._cut()
                self._is_writing = True
            if self._has_header and not self._size:
                self._write(self._format.header(self.settings).encode(), sync=True)

    def append(self, record: Any, *, sync: bool = False) -> None:
        """Append a record: a JSON value, or the bytes of a line with its newline. sync: wait until it is on disk."""
        self.begin()
        with self._format.writing(self.path):
            self._write(record if isinstance(record, bytes) else json.dumps(record).encode() + b"\n", sync)

    def remove(self) -> None:
        """Remove the log, after everything that it records is in place."""
        self._is_writing = False
        self.path.unlink(missing_ok=True)

    def _compare(self, settings: dict[str, Any], force: bool) -> None:
        """Decide whether the log is continued. Raises `InputError` if it is neither continued nor replaced."""
        self._has_header = True
        self.settings = settings
        line = self._reader.readline(MAX_LINE_BYTES)
        header = parse_line(line)
        if not is_header(header):
            if line.endswith(b"\n"):
                raise self._format.another_file(self.path)
            self.is_new = True  # it is empty, or an interruption left only a part of the line
            return
        try:
            self.settings = self._format.same_settings(self.path, header, settings)
            self._size = len(line)
        except InputError:
            if not force:
                raise
            self.is_new = True

    def _write(self, line: bytes, sync: bool) -> None:
        write_all(self._file, line)
        if sync:
            os.fsync(self._file.fileno())
        self._size += len(line)

    def _cut(self) -> None:
        self._file.truncate(self._size)
        self._file.seek(self._size)
        os.fsync(self._file.fileno())

    def _close(self) -> None:
        if self._is_writing:
            with self._format.writing(self.path):
                self._cut()  # a full disk may have left the beginning of a record
        is_output = self._is_writing and not self._format.start
        if not (is_output or os.fstat(self._file.fileno()).st_size):
            self.path.unlink(missing_ok=True)


def parse_line(line: bytes) -> Any:
    """Return the JSON value of a complete line, or None."""
    try:
        return json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None


def is_header(fields: Any) -> bool:
    return isinstance(fields, dict) and {"version", "settings"} <= fields.keys()


def changed_setting(recorded: Settings, settings: Settings) -> str:
    """Return how the settings differ from those of an earlier run, such as "seed was 0, is 1"; "" if they do not.

    "exact" and "comparison" may be recorded although the settings leave them open.
    """
    current = {"exact": recorded.get("exact"), "comparison": recorded.get("comparison"), **settings}
    for name in sorted(recorded.keys() | settings.keys()):
        if recorded.get(name) != current.get(name):
            before, now = (json.dumps(each.get(name)) for each in (recorded, current))
            return f"{name} was {before}, is {now}"
    return ""
