"""A job's output file, which is also the job's log (`runs/log.py`) of finished input lines.

Each record contains the number and a hash of its input line. A second file, OUTPUT.job, contains the settings. It is
written to disk before the first record, and does not change afterwards. An output is refused if it was edited, that is,
if it contains a line that is neither a record nor the result of an interruption.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..checkpoints.files import read_json_object
from ..cli.lines import InputLine
from ..errors import InputError, Message
from ..runs.log import Log, LogFormat, is_header, parse_line
from ..runs.places import atomic_write, clean_up, require_file
from .fields import INPUT_HASH, input_hash
from .job import add_error

VERSION = 4
LOG_FORMAT = LogFormat("output", VERSION, Message("continue with {resume}"), start=b"")
cannot_resume = partial(LOG_FORMAT.refusal, option="resume")


class ResumableOutput:
    """An output file. Call `open`, `remaining` (to skip lines with a record), `begin`, and `write` for each new record.

    Attributes:
        log: The log, with the settings that the output depends on.
        lines: The number of records.
        errors: The number of errors among the records of earlier runs.
        first_errors: The first of these errors, by line number.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.lines = 0
        self.errors = 0
        self.first_errors: dict[int, str] = {}

    @staticmethod
    @contextmanager
    def open(
        path: Path, settings: Mapping[str, Any], *, resume: bool = False, force: bool = False
    ) -> Iterator[ResumableOutput]:
        """Lock an output file, creating it if it does not exist. Its content does not change before `begin` is called.

        Args:
            path: The file.
            settings: All settings that the output depends on, as JSON values.
            resume: Whether to continue after existing records.
            force: Whether to replace existing records.

        Raises:
            InputError: The file is locked, cannot be written, exists, or cannot be resumed with these settings.
        """
        require_file(path, "output")
        with Log.open(path, LOG_FORMAT) as log:
            if not (log.is_new or resume or force):
                way_out = Message("continue it with {resume}, or replace it with {force}")
                raise InputError(f"{path} already exists", "output", way_out)
            log.is_new |= force
            log.settings = dict(settings)
            beside = settings_path(path)
            header = read_header(beside)
            if not log.is_new:
                log.settings = LOG_FORMAT.same_settings(beside, header, settings)
            elif os.path.lexists(beside) and not (header or (force and beside.is_file())):
                raise LOG_FORMAT.another_file(beside)
            yield ResumableOutput(log)

    def remaining(self, lines: Iterator[InputLine], name: str) -> Iterator[InputLine]:
        """Skip the lines that have a record. Raises `InputError` if any of these lines or records has changed.

        name: The name of the input in error messages.
        """

        def parse(record: bytes) -> dict[str, Any] | None:
            number = self.lines + 1
            fields = parse_record(record, number)
            if fields is None and not is_damage(record, number):
                problem = f"{self.log.path} has changed: line {number} is not the record of that line"
                raise cannot_resume(problem, "restore it, or remove it and all lines after it")
            return fields

        for fields in self.log.records(parse):
            number = self.lines + 1
            line = next(lines, None)
            if line is None:
                problem = f"{self.log.path} has a record of line {number}, but {name} has {number - 1} lines"
                raise cannot_resume(problem)
            if fields[INPUT_HASH] != input_hash(line):
                raise cannot_resume(f"line {number} of {name} has changed since its record was written")
            self.lines = number
            if "error" in fields:
                self.errors += 1
                self.first_errors = add_error(self.first_errors, number, fields["error"])
        return lines

    def begin(self) -> None:
        """Truncate the file after the last record, and write the settings of a new output to disk."""
        path = settings_path(self.log.path)
        with LOG_FORMAT.writing(path, is_new=self.log.is_new):
            if self.log.is_new and self.log.path.stat().st_size:
                # If this fails, nothing is lost. Once it succeeds, no run can combine old records and new settings.
                atomic_write(path, LOG_FORMAT.header(None))
            self.log.begin()
            if self.log.is_new:
                clean_up(path)
                atomic_write(path, LOG_FORMAT.header(self.log.settings))

    def write(self, record: bytes) -> None:
        """Append the record for the next line, including its newline."""
        self.log.append(record)
        self.lines += 1


def is_damage(line: bytes, number: int) -> bool:
    """Return whether an interruption may have left this line: it is incomplete, not UTF-8, or contains a zero byte."""
    start = b'{"line": %d, ' % number
    is_torn = not line.endswith(b"\n") and line[: len(start)] == start[: len(line)]
    try:
        return is_torn or "\0" in line.decode()
    except UnicodeDecodeError:
        return True


def parse_record(line: bytes, number: int) -> dict[str, Any] | None:
    """Return the fields of a record, or None if the line is not the record with this number."""
    fields = parse_line(line)
    is_record = isinstance(fields, dict) and fields.get("line") == number and INPUT_HASH in fields
    return fields if is_record else None


def settings_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.job")


def read_header(path: Path) -> dict[str, Any]:
    """Return the version and settings from a settings file, or an empty dict if no job wrote the file."""
    with suppress(InputError, OSError):
        header = read_json_object(path)
        if is_header(header):
            return header
    return {}
