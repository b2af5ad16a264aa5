"""A run's log records finished work, so that an interrupted run can be continued.

A log is a text file. Its first line, the header, contains the settings on which all records depend. Every other line is
a record of finished work. Two types of log have no header. In the log of a folder of transcripts, each record contains
its own settings. A job's settings are stored in a second file, because the job's log is its output.

To continue, a run locks the log, compares the log's settings with its own, and reads the records. A killed process
leaves at most one incomplete line at the end. After a power failure, the end of the file may be missing or consist of
zero bytes. The log is truncated before the first line that an interruption may have damaged, and work that is no longer
recorded is repeated. Nothing is written before the first new record, so a run that is rejected leaves the log
unchanged.
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

MAX_LINE_BYTES = 1 << 28  # limits memory use for a damaged file without newlines

START_OVER = Message("start over with {force}")

Settings = Mapping[str, Any]  # JSON values
Record = TypeVar("Record")


@dataclass(frozen=True)
class LogFormat:
    """The properties that all of a command's logs share.

    Args:
        option: The option that names the output.
        version: The version of the record format.
        continue_with: Advice on continuing after an interruption, for error messages.
        start_over: Advice on starting over, for error messages.
        start: The first bytes of every log. A file with a different start is rejected. Empty if the log is an output.
    """

    option: str
    version: int
    continue_with: str | Message = "run the same command again to continue"
    start_over: str | Message = START_OVER
    start: bytes = b'{"version": '

    @property
    def kept(self) -> str | Message:
        """Advice for continuing after the disk was full, for error messages."""
        return Message("what is finished is kept; {continue_with}", continue_with=self.continue_with)

    def header(self, settings: Settings | None) -> str:
        return json.dumps({"version": self.version, "settings": settings}) + "\n"

    def same_settings(self, path: Path, header: Settings, wanted: Settings) -> dict[str, Any]:
        """Return a header's settings, which may include "exact". Raises `InputError` if they differ from `wanted`."""
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
        """Return the error for a run that cannot be continued. option: The option at fault (default: `self.option`)."""
        return InputError(
            problem,
            option or self.option,
            Message("{way_out}, or {start_over}", way_out=way_out, start_over=self.start_over),
        )

    def another_file(self, path: Path) -> InputError:
        way_out = Message("name another {option}, or move that file", option=Name(self.option))
        return InputError(f"{path} is needed to record what is finished, but is another file", self.option, way_out)

    def writing(self, path: Path, *, is_new: bool = False) -> AbstractContextManager[None]:
        """Convert an OSError raised while writing `path` to an `InputError`. is_new: Whether the log has no records."""
        return writing(
            Name(self.option), path, Message("name another {option}", option=Name(self.option)) if is_new else self.kept
        )


class Log:
    """An open log. Create it with `open`, read its `records`, then `append` new ones.

    Attributes:
        path: The file.
        is_new: Whether the log contains no earlier run to continue.
        settings: The settings on which all records depend. The caller may add "exact" and "comparison" in a new log.
    """

    def __init__(self, path: Path, format: LogFormat, reader: BufferedReader, file: FileIO) -> None:
        self.path = path
        self.is_new = os.fstat(file.fileno()).st_size == 0
        self.settings: dict[str, Any] = {}
        self._format = format
        self._reader = reader
        self._file = file
        self._has_header = False
        self._size = 0  # total bytes of the header and the complete records
        self._is_writing = False

    @staticmethod
    @contextmanager
    def open(path: Path, format: LogFormat, settings: Settings | None = None, *, force: bool = False) -> Iterator[Log]:
        """Lock a log, creating it if it does not exist. Its content changes only in `begin` or `append`.

        When the context exits, even with an exception, all records are on disk. A log that is empty is then removed,
        unless it is an output for which `begin` was called.

        Args:
            path: The file.
            format: The format of the log.
            settings: All settings on which the records depend, as JSON values; None for a log without settings.
            force: Whether to replace a log with different settings or another version.

        Raises:
            InputError: The file is locked, cannot be written, is not a log, or contains different settings.
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
        """Yield earlier runs' records. The first `append` discards all records that have not been read by then.

        parse: Returns the record in a line, or None if an interruption may have damaged the line.
        """
        for line in iter(partial(self._reader.readline, MAX_LINE_BYTES), b""):
            record = None if self.is_new else parse(line)
            if record is None:
                return
            self._size += len(line)
            yield record

    def begin(self) -> None:
        """Truncate the file after the last record that was read. If the log is new, write its header. Syncs to disk."""
        with self._format.writing(self.path, is_new=self.is_new):
            if not self._is_writing:
                self._cut()
                self._is_writing = True
            if self._has_header and not self._size:
                self._write(self._format.header(self.settings).encode(), sync=True)

    def append(self, record: Any, *, sync: bool = False) -> None:
        """Append a record: a JSON value, or a line of bytes including its newline. sync: Wait until it is on disk."""
        self.begin()
        with self._format.writing(self.path):
            self._write(record if isinstance(record, bytes) else json.dumps(record).encode() + b"\n", sync)

    def remove(self) -> None:
        """Remove the log. Call this after all the work that it records has been saved elsewhere."""
        self._is_writing = False
        self.path.unlink(missing_ok=True)

    def _compare(self, settings: dict[str, Any], force: bool) -> None:
        """Set `is_new` and `settings`. Raises `InputError` if the log can be neither continued nor replaced."""
        self._has_header = True
        self.settings = settings
        line = self._reader.readline(MAX_LINE_BYTES)
        header = parse_line(line)
        if not is_header(header):
            if line.endswith(b"\n"):
                raise self._format.another_file(self.path)
            self.is_new = True  # the file is empty, or an interruption left an incomplete header
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
                self._cut()  # a full disk may have left an incomplete record
        is_output = self._is_writing and not self._format.start
        if not (is_output or os.fstat(self._file.fileno()).st_size):
            self.path.unlink(missing_ok=True)


def parse_line(line: bytes) -> Any:
    """Return the JSON value in a line, or None if the line is incomplete or not JSON."""
    try:
        return json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None


def is_header(fields: Any) -> bool:
    return isinstance(fields, dict) and {"version", "settings"} <= fields.keys()


def changed_setting(recorded: Settings, settings: Settings) -> str:
    """Describe the first setting that differs from an earlier run's, such as "seed was 0, is 1"; "" if all are equal.

    "exact" and "comparison" may be recorded even if they are not among the new settings.
    """
    current = {"exact": recorded.get("exact"), "comparison": recorded.get("comparison"), **settings}
    for name in sorted(recorded.keys() | settings.keys()):
        if recorded.get(name) != current.get(name):
            before, now = (json.dumps(each.get(name)) for each in (recorded, current))
            return f"{name} was {before}, is {now}"
    return ""
