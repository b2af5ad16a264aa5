"""The journal of a run: the outputs of its finished pieces, so that an interrupted run can be continued.

The first line has the settings that the outputs depend on. Each other line is a finished piece, with its number and a
hash of its source, in the order in which they were finished. A killed process leaves at most the beginning of a line at
the end; after a power failure, the end may be missing or have zeros. Everything from the first line that is not a
record is cut off, and those pieces are decoded again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from ..checkpoints.json_text import parse_json_object
from ..cli.run_config import changed_setting
from ..errors import InputError, Name, writing
from ..loading.atomic_io import open_locked, write_all
from .outputs import DecodedPiece
from .pieces import Piece

VERSION = 1
MAX_LINE_BYTES = 1 << 28  # limits the memory that a damaged file without newlines takes
START = b'{"version": '
START_OVER = (", or start over with ", Name("force"))
WAY_OUT = "the finished pieces are kept; run the same command again to continue"


class Journal:
    """A journal within its context `open`. Ask `recorded` for each piece, and `append` each one that was decoded.

    Attributes:
        settings: Everything that the outputs depend on. "exact" may be added to those of a new journal.
        is_new: Whether there is no earlier run to continue.
        ended: When the earlier run ended.
    """

    def __init__(self, path: Path, reader: BinaryIO, writer: FileIO, settings: dict[str, Any], force: bool) -> None:
        self.path = path
        self._ahead: dict[int, tuple[str, DecodedPiece]] = {}  # records by number that were read, but not used yet
        self._reader: BinaryIO | None = reader  # None after the last record
        self._writer = writer
        self._force = force
        header = reader.readline(MAX_LINE_BYTES)
        recorded = self._checked(header, settings)
        self.is_new = recorded is None
        self.ended = os.fstat(writer.fileno()).st_mtime
        self.settings = recorded or settings
        self._size = 0 if recorded is None else len(header)  # bytes that are kept
        if recorded is None:
            self._reader = None
        self._is_writing = False

    @staticmethod
    @contextmanager
    def open(path: Path, settings: Mapping[str, Any], *, force: bool = False) -> Iterator[Journal]:
        """Lock a journal, or create it. An empty one is removed at the end.

        Args:
            path: The file.
            settings: Everything that the outputs depend on, as JSON values.
            force: Whether to decode again what cannot be continued.

        Raises:
            InputError: The file is in use, cannot be written, is no journal, or belongs to a run with other settings.
        """
        if os.path.lexists(path) and not path.is_file():
            raise another_file(path)
        busy = InputError(f"{path}: another run is writing it", "output", "wait, or name another output")
        with writing(Name("output"), path):
            writer = open_locked(path, busy)
        with writer, path.open("rb") as reader:
            try:
                yield Journal(path, reader, writer, json.loads(json.dumps(settings)), force)
            finally:
                if not os.fstat(writer.fileno()).st_size:
                    path.unlink(missing_ok=True)

    def recorded(self, number: int, piece: Piece, name: str) -> DecodedPiece | None:
        """Return the recorded output of a piece, or None if it must be decoded. The numbers must ascend.

        name: The name of its document, for messages.

        Raises:
            InputError: The source has changed since the piece was recorded.
        """
        wanted = digest(piece)
        while (found := self._ahead.get(number)) is None or found[0] != wanted:
            if found is not None and not self._force:
                problem = f"{name} has changed since the interrupted run (line {piece.line})"
                raise InputError(problem, "files", ("restore it", *START_OVER))
            if not self._read():
                return None
        del self._ahead[number]
        return found[1]

    def append(self, number: int, piece: Piece, decoded: DecodedPiece) -> None:
        """Record a decoded piece. Nothing of an earlier run is lost before this call."""
        with writing(Name("output"), self.path, WAY_OUT):
            if not self._is_writing:
                self._begin()
            self._write({"piece": number, "source_sha256": digest(piece), "output": decoded.as_json()})

    def remove(self) -> None:
        """Remove the journal, after all outputs are in place."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> bool:
        """Read the next record. Returns False after the last one."""
        if self._reader is None:
            return False
        line = self._reader.readline(MAX_LINE_BYTES)
        record = parse_record(line)
        if record is None:
            self._reader = None
            return False
        number, source, decoded = record
        self._ahead[number] = source, decoded
        self._size += len(line)
        return True

    def _begin(self) -> None:
        """Cut off everything after the last record."""
        self._is_writing = True
        self._writer.truncate(self._size)
        self._writer.seek(self._size)
        if self.is_new:
            self._write({"version": VERSION, "settings": self.settings})
            os.fsync(self._writer.fileno())

    def _write(self, fields: Mapping[str, Any]) -> None:
        write_all(self._writer, json.dumps(fields).encode() + b"\n")

    def _checked(self, line: bytes, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the settings of an earlier run, or None if there is nothing to continue."""
        header = parse_line(line)
        if not {"version", "settings"} <= header.keys() or not isinstance(header["settings"], dict):
            begun = line.rstrip(b"\0")[: len(START)]
            if line.endswith(b"\n") or not START.startswith(begun):
                raise another_file(self.path)
            return None  # it is empty, or an interruption left only a part of the line
        problem = f"{self.path} was written by another version"
        way_out = "finish the run with that version"
        if header["version"] == VERSION:
            if not (changed := changed_setting(header["settings"], settings)):
                return dict(header["settings"])
            problem = f"{self.path} is the journal of a run with other settings ({changed})"
            way_out = "give the same settings"
        if not self._force:
            raise InputError(problem, "output", (way_out, *START_OVER))
        return None


def parse_record(line: bytes) -> tuple[int, str, DecodedPiece] | None:
    """Return the number, the hash of the source and the output of a record; None for the end and for damage."""
    fields = parse_line(line)
    try:
        return int(fields["piece"]), str(fields["source_sha256"]), DecodedPiece.from_json(fields["output"])
    except (KeyError, OverflowError, TypeError, ValueError):
        return None


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the object of a complete line, or an empty one."""
    try:
        return parse_json_object(line.decode()) if line.endswith(b"\n") else {}
    except ValueError:  # not UTF-8, or an `InputError`
        return {}


def digest(piece: Piece) -> str:
    """Return a hash of a piece as its document has it, and its line."""
    return hashlib.sha256(f"{piece.line} {piece.raw}".encode(errors="surrogatepass")).hexdigest()[:16]


def another_file(path: Path) -> InputError:
    way_out = ("name another ", Name("output"), ", or move that file")
    return InputError(f"{path} is needed for the journal, but is another file", "output", way_out)
