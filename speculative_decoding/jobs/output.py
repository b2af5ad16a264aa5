"""An output file that survives whatever ends the job. Knows of a record its line number, and whether it is an error.

Beside the output stands a checkpoint: how many lines are done, how many bytes of output that is, a digest of the input
so far, and the settings. A record goes to the system in one piece as it comes; once a second the output is
synchronised, and *then* a new checkpoint takes the place of the old one by renaming. So what a checkpoint speaks of is
on the disk, at any moment, also when the power fails. Resuming cuts the output to the checkpoint, and with it whatever
was torn; at most what came in the last second is done again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from typing import Any, BinaryIO

from ..checkpoints.files import read_json_object
from ..errors import InputError, writing
from ..loading.atomic_io import atomic_write
from ..sampling.options import current_names
from .input import InputLine, read_lines

VERSION = 2
COMMIT_SECONDS = 1.0
GOES_ON = "what was written stays, --resume goes on from it"


@dataclass(frozen=True)
class ResumePoint:
    """Where a job resumes: finished lines, the size of their records in bytes, and the digest of the last line."""

    lines: int = 0
    size: int = 0
    input_sha256: str = ""


class ResumableOutput:
    """An output file with its checkpoint. Open it, take the `remaining` lines, then `running` around the writing.

    done: what has been written whole. errors: how many of the records of earlier runs are errors.
    """

    def __init__(self, path: Path, file: BinaryIO, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.done = ResumePoint()
        self.errors = 0
        self._file = file
        self._on_disk: ResumePoint | None = None  # None: nothing of this job yet
        self._failure: OSError | None = None

    @staticmethod
    @contextmanager
    def open(
        path: Path, settings: Mapping[str, Any], *, resume: bool = False, force: bool = False
    ) -> Iterator[ResumableOutput]:
        """Lock an output, made if it is not there, and learn what is in it; changes nothing yet. No second process gets
        it as long as this is open.

        settings: all that the output depends on, for JSON. Raises `InputError`.
        """
        if path.exists() and not path.is_file():
            raise InputError(f"--output {path}: is no regular file; without --output records go to standard output")
        with writing("--output", path):
            file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)  # noqa: SIM115
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(f"--output {path}: another job is writing it; wait, or name another file") from error
            journal = ResumableOutput(path, file, json.loads(json.dumps(settings)))
            if path.stat().st_size and resume:
                journal._read()
            elif path.stat().st_size and not force:
                raise InputError(f"--output {path}: exists; go on with it with --resume, or replace it with --force")
            yield journal

    def remaining(self, file: BinaryIO, name: str) -> Iterator[InputLine]:
        """The lines of the input that are still to do. Raises `InputError` if the others are not what they were."""
        if (known := self._on_disk) is None:
            return read_lines(file)
        start = file.tell() if file.seekable() else None
        lines, digests = read_lines(file), {0: ""}
        for line in islice(lines, known.lines):
            if line.number in (self.done.lines, known.lines):
                digests[line.number] = line.digest.hex()
        if digests.get(known.lines) != known.input_sha256:
            why = f"the first {known.lines} lines of {name} are not those that {self.path} was made from"
            raise cannot_resume(why, "bring them back")
        if self.done.lines < known.lines:
            if start is None:
                why = f"{self.path} is shorter than it was, and {name} cannot be read twice"
                raise cannot_resume(why, "give the input as a file")
            self.done = ResumePoint(self.done.lines, self.done.size, digests[self.done.lines])
            file.seek(start)
            lines = islice(read_lines(file), self.done.lines, None)
        return lines

    @contextmanager
    def running(self) -> Iterator[None]:
        """Between entering and leaving, also by an exception, records may be written; then all of them are on the disk
        and the checkpoint says so.
        """
        with writing("--output", self.path, GOES_ON):
            self._commit()  # before anything is cut, so that a kill in between leaves a job that can go on
            self._cut()
        stop = Event()
        committing = Thread(target=self._keep_committing, args=(stop,), name="checkpoints", daemon=True)
        committing.start()
        try:
            yield
        finally:
            stop.set()
            committing.join()
            with writing("--output", self.path, GOES_ON):
                self._cut()
                self._commit()

    def write(self, record: bytes, line: InputLine) -> None:
        """Append a record, which ends with a line end, in one piece."""
        with writing("--output", self.path, GOES_ON):
            if self._failure is not None:
                raise self._failure
            rest = memoryview(record)
            while rest:
                rest = rest[self._file.write(rest) :]
        self.done = ResumePoint(line.number, self.done.size + len(record), line.digest.hex())

    def _keep_committing(self, stop: Event) -> None:
        """In a thread of its own: a burst of records is safe a second later, however long the next one takes."""
        while not stop.wait(COMMIT_SECONDS) and self._failure is None:
            try:
                self._commit()
            except OSError as error:
                self._failure = error  # the next record says it

    def _commit(self) -> None:
        """What has been written is on the disk, and then the checkpoint says so."""
        if (done := self.done) != self._on_disk:
            os.fsync(self._file.fileno())
            content = {"version": VERSION, **asdict(done), "settings": self.settings}
            atomic_write(journal_path(self.path), json.dumps(content) + "\n")
            self._on_disk = done

    def _cut(self) -> None:
        """Behind the last whole record."""
        self._file.truncate(self.done.size)
        self._file.seek(self.done.size)

    def _read(self) -> None:
        """What an earlier run left: its checkpoint, and as many of the records it speaks of as are there."""
        self._on_disk = known = read_journal(self.path, self.settings)
        lines = size = 0
        with self.path.open("rb") as records:
            for record in islice(records, known.lines):
                if not record.endswith(b"\n"):
                    break  # shorter than the checkpoint: somebody cut it
                lines, size = lines + 1, size + len(record)
                try:
                    fields = json.loads(record)
                    is_record = fields["line"] == lines
                except (ValueError, TypeError, KeyError):
                    is_record = False
                if not is_record:
                    raise cannot_resume(f"{self.path} was changed, line {lines} is not its record", "bring it back")
                self.errors += "error" in fields
        if lines == known.lines and size != known.size:
            why = f"{self.path} was changed, its first {lines} lines are not as long as they were"
            raise cannot_resume(why, "bring it back")
        self.done = known if lines == known.lines else ResumePoint(lines, size)


def journal_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.job")


def read_journal(output: Path, settings: Mapping[str, Any]) -> ResumePoint:
    """Raises `InputError` if there is none, or it is of a job with other settings."""
    path = journal_path(output)
    if not path.exists():
        why = f"{output} has no {path.name} beside it, so nobody knows what it was made from"
        raise cannot_resume(why, "name another --output")
    try:
        content = read_json_object(path)
        version, before = content.pop("version"), current_names(content.pop("settings"))
        checkpoint = ResumePoint(**content) if version == VERSION else None
        differing = sorted(name for name in before.keys() | settings.keys() if before.get(name) != settings.get(name))
    except (InputError, TypeError, KeyError, AttributeError) as error:
        raise cannot_resume(f"{path} cannot be read", "bring it back") from error
    if checkpoint is None:
        raise cannot_resume(f"{path} is of another version", "finish with that")
    for name in differing:
        was, value = json.dumps(before.get(name)), json.dumps(settings.get(name))
        raise cannot_resume(f"{output} was made with other settings ({name} was {was}, is {value})", "give the same")
    return checkpoint


def cannot_resume(why: str, instead: str) -> InputError:
    return InputError(f"--resume: {why}; {instead}, or start over with --force")
