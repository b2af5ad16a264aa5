"""An output file that can be resumed after any interruption.

A journal file next to the output holds the number of finished lines, the size of their records, a digest of these lines
and the settings. Each record is written as soon as it is ready. Once a second the output is synchronized to disk,
and only *then* a new journal replaces the old one by renaming. So the journal never claims more than the disk has, even
after a power failure. Resuming truncates the output to the records in the journal, which removes any partial record.
At most the last second of work is repeated.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import Any, BinaryIO

from ..checkpoints.files import read_json_object
from ..cli.lines import InputLine, read_lines
from ..errors import InputError, Name, Words, words, writing
from ..loading.atomic_io import atomic_write, clean_up
from ..sampling.options import validate
from ..sampling.values import Int, Text

VERSION = 2
COMMIT_SECONDS = 1.0
WAY_OUT = ("the records written so far are kept; continue with ", Name("resume"))


@dataclass(frozen=True)
class ResumePoint:
    """The position that a journal records."""

    lines: int = 0  # number of finished lines
    size: int = 0  # bytes of their records
    input_sha256: str = ""  # InputLine.digest of the last finished line

    def checked(self) -> ResumePoint:
        """Return this point. Raises `InputError` if its values are invalid because the journal is damaged."""
        for name, type_ in (
            ("lines", Int(0, sys.maxsize)),
            ("size", Int(0)),
            ("input_sha256", Text(may_be_empty=True)),
        ):
            validate(name, type_, getattr(self, name))
        if re.fullmatch("[0-9a-f]{64}" if self.lines else "", self.input_sha256) is None:
            raise InputError(f"input_sha256 is not the digest of {self.lines} lines")
        return self


class ResumableOutput:
    """An output file with its journal. `open` it, iterate over `remaining` lines, and `write` within `running`.

    Attributes:
        settings: The settings recorded in the journal. If they lack "exact", a resumed job keeps the journal's value.
        written: The position after the last complete record.
        errors: How many records of earlier runs are errors.
    """

    def __init__(self, path: Path, file: BinaryIO, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = dict(settings)
        self.written = ResumePoint()
        self.errors = 0
        self._file = file
        self._journaled: ResumePoint | None = None  # None: this job has no journal yet
        self._failure: OSError | None = None

    @staticmethod
    @contextmanager
    def open(
        path: Path, settings: Mapping[str, Any], *, resume: bool = False, force: bool = False
    ) -> Iterator[ResumableOutput]:
        """Lock an output file against other processes and read its journal. Nothing is changed yet.

        Args:
            path: The output file. It is created if it does not exist.
            settings: Everything that the output depends on, as JSON values.
            resume: Continue an output that exists.
            force: Replace an output that exists.

        Raises:
            InputError: The file is in use, cannot be written, exists, or cannot be resumed with these settings.
        """
        if path.exists() and not path.is_file():
            raise InputError(
                f"{path} is not a regular file",
                "output",
                ("leave out ", Name("output"), " to write to standard output"),
            )
        with writing(Name("output"), path):
            file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)  # noqa: SIM115
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"{path}: another job is writing it", "output", "wait, or name another file"
                ) from error
            output = ResumableOutput(path, file, json.loads(json.dumps(settings)))
            is_empty = path.stat().st_size == 0
            if not is_empty and resume:
                output._read()
            elif not is_empty and not force:
                raise InputError(
                    f"{path} already exists",
                    "output",
                    ("continue it with ", Name("resume"), ", or replace it with ", Name("force")),
                )
            yield output

    def remaining(self, file: BinaryIO, name: str) -> Iterator[InputLine]:
        """Yield the input lines that are not finished. Raises `InputError` if the finished lines have changed.

        Args:
            file: The input.
            name: Its name for error messages.
        """
        journaled = self._journaled
        if journaled is None:
            return read_lines(file)

        start = file.tell() if file.seekable() else None
        lines = read_lines(file)
        digests = {0: ""}
        number = 0
        for number, line in enumerate(islice(lines, journaled.lines), 1):
            if number in (self.written.lines, journaled.lines):
                digests[number] = line.digest.hex()
        journal = journal_path(self.path)
        if number < journaled.lines:
            problem = f"{journal} lists {journaled.lines} finished lines, but {name} has {number}"
            raise cannot_resume(problem, "restore the one that has changed")
        if digests[journaled.lines] != journaled.input_sha256:
            problem = f"the first {number} lines of {name} have changed since {self.path} was written, or {journal} has"
            raise cannot_resume(problem, "restore them")
        if self.written.lines == journaled.lines:
            return lines

        # Records were lost, so some lines that the journal counts as finished are decoded again
        if start is None:
            raise cannot_resume(f"{self.path} has lost records, and {name} cannot be read twice", "use a file as input")
        self.written = ResumePoint(self.written.lines, self.written.size, digests[self.written.lines])
        file.seek(start)
        return islice(read_lines(file), self.written.lines, None)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Allow `write` within the context. At the end, even after an exception, all records are in the journal."""
        with writing(Name("output"), self.path, WAY_OUT):
            clean_up(journal_path(self.path))
            self._commit()  # before truncating, so that a job killed in between can be resumed
            self._truncate()
        stop = Event()
        committing = Thread(target=self._keep_committing, args=(stop,), name="journal", daemon=True)
        committing.start()
        try:
            yield
        finally:
            stop.set()
            committing.join()
            with writing(Name("output"), self.path, WAY_OUT):
                self._truncate()
                self._commit()

    def write(self, record: bytes, line: InputLine) -> None:
        """Append the record of a line. The record ends with a newline."""
        with writing(Name("output"), self.path, WAY_OUT):
            if self._failure is not None:
                raise self._failure
            rest = memoryview(record)
            while rest:
                rest = rest[self._file.write(rest) :]
        self.written = ResumePoint(line.number, self.written.size + len(record), line.digest.hex())

    def _keep_committing(self, stop: Event) -> None:
        """Commit in a thread, so that records are on disk after a second even if the next record takes long."""
        while not stop.wait(COMMIT_SECONDS) and self._failure is None:
            try:
                self._commit()
            except OSError as error:
                self._failure = error  # raised by the next write()

    def _commit(self) -> None:
        """Synchronize the output to disk, then replace the journal."""
        written = self.written
        if written != self._journaled:
            os.fsync(self._file.fileno())
            content = {"version": VERSION, **asdict(written), "settings": self.settings}
            atomic_write(journal_path(self.path), json.dumps(content) + "\n")
            self._journaled = written

    def _truncate(self) -> None:
        """Remove everything after the last complete record."""
        self._file.truncate(self.written.size)
        self._file.seek(self.written.size)

    def _read(self) -> None:
        """Read the journal of an earlier run, and check the listed records that still exist."""
        journaled = read_journal(self.path, self.settings)
        exact = recorded_setting(self.path, "exact")
        if exact is not None:
            self.settings = {"exact": exact} | self.settings
        lines = 0
        size = 0
        with self.path.open("rb") as records:
            for record in islice(records, journaled.lines):
                if not record.endswith(b"\n"):
                    break  # the file was truncated
                lines += 1
                size += len(record)
                try:
                    fields = json.loads(record)
                    is_record = fields["line"] == lines
                except (ValueError, TypeError, KeyError, RecursionError):
                    is_record = False
                if not is_record:
                    raise cannot_resume(f"{self.path} has changed: line {lines} is not the record of that line")
                self.errors += "error" in fields
        if lines == journaled.lines and size != journaled.size:
            problem = f"{self.path} or its journal has changed: the first {lines} lines have {size} bytes"
            raise cannot_resume(f"{problem} (expected {journaled.size})")
        self._journaled = journaled
        self.written = journaled if lines == journaled.lines else ResumePoint(lines, size)


def journal_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.job")


def read_journal(output: Path, settings: Mapping[str, Any]) -> ResumePoint:
    """Read the journal of an output. Raises `InputError` if it is missing or damaged, or its settings differ."""
    path = journal_path(output)
    if not path.exists():
        raise cannot_resume(f"{output} has no journal ({path.name})", ("name another ", Name("output")))
    try:
        content = read_json_object(path)
        version = content.pop("version")
        previous = content.pop("settings")
        point = ResumePoint(**content).checked() if version == VERSION else None
        settings = {"exact": previous.get("exact"), **settings}  # the first run may have decided it
        previous.setdefault("exact", settings["exact"])  # earlier versions did not record it
        changed = sorted(name for name in previous.keys() | settings.keys() if previous.get(name) != settings.get(name))
    except (InputError, TypeError, KeyError, AttributeError) as error:
        reason = f" ({error})" if isinstance(error, InputError) else ""
        raise cannot_resume(f"{path} cannot be read{reason}") from error
    if point is None:
        raise cannot_resume(f"{path} was written by another version", "finish the job with that version")
    if changed:
        name = changed[0]
        before, now = json.dumps(previous.get(name)), json.dumps(settings.get(name))
        problem = f"{output} was written with other settings ({name} was {before}, is {now})"
        raise cannot_resume(problem, "give the same settings")
    return point


def recorded_setting(output: Path, name: str) -> Any:
    """Return a setting from the journal of an output. None if the journal is unreadable; see `read_journal`."""
    with suppress(InputError, OSError, TypeError, KeyError, AttributeError):
        return read_json_object(journal_path(output))["settings"].get(name)
    return None


def cannot_resume(problem: str, way_out: Words = "restore it") -> InputError:
    return InputError(problem, "resume", (*words(way_out), ", or start over with ", Name("force")))
