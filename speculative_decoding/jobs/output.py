"""An output file that can be resumed after any interruption.

Each record ends with a newline, and has the number and a hash of its input line. So the output itself shows which lines
are finished. A second file, OUTPUT.job, holds the settings. It is on disk before the first record, and does not change
afterwards.

A killed job leaves at most the beginning of a record at the end. After a power failure, the end may be missing, and the
file may contain zeros where data never reached the disk. Resuming cuts off everything from such damage on, and decodes
those lines again. Any other line that is not a record was changed by someone, and the file is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from ..checkpoints.files import read_json_object
from ..cli.lines import InputLine
from ..cli.run_config import changed_setting
from ..errors import InputError, Name, Words, words, writing
from ..loading.atomic_io import atomic_write, clean_up, open_locked, write_all
from .fields import INPUT_HASH, input_hash

VERSION = 4
MAX_RECORD_BYTES = 2**28  # limits the memory that a damaged file without newlines takes
WAY_OUT = ("the records written so far are kept; continue with ", Name("resume"))


class ResumableOutput:
    """An output file. `open` it, skip the lines that have a record with `remaining`, and `write` within `running`.

    Attributes:
        settings: Everything that the output depends on. "exact" may be added to those of a new output.
        is_new: Whether no earlier run has written records that are kept.
        lines: The number of records.
        errors: How many records of earlier runs are errors.
    """

    def __init__(self, path: Path, file: FileIO, settings: dict[str, Any], is_new: bool) -> None:
        self.path = path
        self.settings = settings
        self.lines = 0
        self.errors = 0
        self._file = file
        self.is_new = is_new
        self._size = 0  # bytes of the records

    @staticmethod
    @contextmanager
    def open(
        path: Path, settings: Mapping[str, Any], *, resume: bool = False, force: bool = False
    ) -> Iterator[ResumableOutput]:
        """Lock an output file, or create it. Nothing else is changed yet.

        Args:
            path: The file. If it has records, they are continued or replaced.
            settings: Everything that the output depends on, as JSON values.

        Raises:
            InputError: The file is in use, cannot be written, exists, or cannot be resumed with these settings.
        """
        if path.exists() and not path.is_file():
            way_out: Words = ("leave out ", Name("output"), " to write to standard output")
            raise InputError(f"{path} is not a regular file", "output", way_out)
        busy = InputError(f"{path}: another job is writing it", "output", "wait, or name another file")
        with writing(Name("output"), path):
            file = open_locked(path, busy)
        with file:
            is_empty = path.stat().st_size == 0
            if not (is_empty or resume or force):
                way_out = ("continue it with ", Name("resume"), ", or replace it with ", Name("force"))
                raise InputError(f"{path} already exists", "output", way_out)
            current = json.loads(json.dumps(settings))
            is_new = is_empty or force
            if is_new:
                require_replaceable(settings_path(path), force)
            yield ResumableOutput(path, file, current if is_new else recorded_settings(path, current), is_new)

    def remaining(self, lines: Iterator[InputLine], name: str) -> Iterator[InputLine]:
        """Skip the lines that have a record. Raises `InputError` if these lines or records have changed.

        name: what error messages call the input.
        """
        if self.is_new:
            return lines
        with self.path.open("rb") as file:
            for number, record in enumerate(iter(partial(file.readline, MAX_RECORD_BYTES), b""), 1):
                if is_damage(record, number):
                    break
                fields = parse_record(record, number)
                if fields is None:
                    problem = f"{self.path} has changed: line {number} is not the record of that line"
                    raise cannot_resume(problem, "restore it, or remove it and all lines after it")
                line = next(lines, None)
                if line is None:
                    raise cannot_resume(f"{self.path} has a record of line {number}, but {name} has {number - 1} lines")
                if fields[INPUT_HASH] != input_hash(line):
                    raise cannot_resume(f"line {number} of {name} has changed since its record was written")
                self.lines = number
                self.errors += "error" in fields
                self._size += len(record)
        return lines

    @contextmanager
    def running(self) -> Iterator[None]:
        """Allow `write` within the context. At the end, even after an exception, all records are on disk."""
        with writing(Name("output"), self.path, "name another file" if self.is_new else WAY_OUT):
            if self.is_new and self.path.stat().st_size:
                self._write_settings(None)  # fails before anything is lost; records of other settings cannot be resumed
            self._cut()
            if self.is_new:
                clean_up(settings_path(self.path))
                self._write_settings(self.settings)
        try:
            yield
        finally:
            with writing(Name("output"), self.path, WAY_OUT):
                self._cut()

    def write(self, record: bytes) -> None:
        """Append the record of the next line. It ends with a newline."""
        with writing(Name("output"), self.path, WAY_OUT):
            write_all(self._file, record)
        self.lines += 1
        self._size += len(record)

    def _write_settings(self, settings: Mapping[str, Any] | None) -> None:
        atomic_write(settings_path(self.path), json.dumps({"version": VERSION, "settings": settings}) + "\n")

    def _cut(self) -> None:
        """Remove everything after the last complete record, and synchronize the output to disk."""
        self._file.truncate(self._size)
        self._file.seek(self._size)
        os.fsync(self._file.fileno())


def is_damage(line: bytes, number: int) -> bool:
    """Return whether an interruption can have left this line: the beginning of a record, or bytes that are not text."""
    start = b'{"line": %d, ' % number
    is_torn = not line.endswith(b"\n") and line[: len(start)] == start[: len(line)]
    try:
        return is_torn or "\0" in line.decode()
    except UnicodeDecodeError:
        return True


def parse_record(line: bytes, number: int) -> dict[str, Any] | None:
    """Return the fields of the record with this number, or None if the line is something else."""
    try:
        fields = json.loads(line)
        is_record = line.endswith(b"\n") and fields["line"] == number and INPUT_HASH in fields
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return fields if is_record else None


def settings_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.job")


def require_replaceable(path: Path, force: bool) -> None:
    """Raise `InputError` if a file that no job wrote is at the place of the settings."""
    if not os.path.lexists(path) or (force and path.is_file()):
        return
    with suppress(InputError, OSError):
        if {"version", "settings"} <= read_json_object(path).keys():
            return
    way_out = ("name another ", Name("output"), ", or move that file")
    raise InputError(f"{path} is needed for the settings of the job, but is another file", "output", way_out)


def recorded_settings(output: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an output's settings, which may also have "exact". Raises `InputError` if they differ from `settings`."""
    path = settings_path(output)
    if not path.exists():
        raise cannot_resume(f"{output} has no settings ({path.name})", ("name another ", Name("output")))
    try:
        content = read_json_object(path)
        version, recorded = content["version"], dict(content["settings"])
    except (InputError, OSError, KeyError, TypeError, ValueError) as error:
        reason = f" ({error})" if isinstance(error, InputError | OSError) else ""
        raise cannot_resume(f"{path} cannot be read{reason}") from error
    if version != VERSION:
        raise cannot_resume(f"{path} was written by another version", "finish the job with that version")
    if not isinstance(recorded.get("exact"), bool | None):
        raise cannot_resume(f"{path} is damaged")
    if changed := changed_setting(recorded, settings):
        raise cannot_resume(f"{output} was written with other settings ({changed})", "give the same settings")
    return recorded


def cannot_resume(problem: str, way_out: Words = "restore it") -> InputError:
    return InputError(problem, "resume", (*words(way_out), ", or start over with ", Name("force")))
