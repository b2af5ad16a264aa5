"""Reads text pairs from files: tab-separated columns, TMX, or a job's records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..checkpoints.files import open_if_regular
from ..checkpoints.json_text import is_json_value, parse_json_object
from ..cli.lines import decode_line, read_lines
from ..errors import InputError, Message, note

MAX_NAMED = 5  # skipped lines to list in a note

Pairs = Iterator[tuple[str, str]]
QUOTED = re.compile(r'"((?:[^"]|"")*)"')


class PairFile:
    """A file of pairs: a context manager that can be iterated over once.

    Attributes:
        languages: The source and target languages, if the file names them.
        sha256: The hash of the file.
    """

    def __init__(self, path: Path, source_language: str | None, target_language: str | None) -> None:
        if path.suffix.lower() not in READERS:
            raise InputError(
                f"{path} has an unknown suffix",
                "memory",
                "name a file of tab-separated columns (.tsv), TMX (.tmx), or records of a job (.jsonl)",
            )
        self.path = path
        self.languages: tuple[str, str] | None = None
        self._wanted = source_language, target_language
        self._skipped: list[tuple[int, str]] = []  # first lines without a pair: line number and reason
        self._num_skipped = 0

    def __enter__(self) -> PairFile:
        try:
            self._file = open_if_regular(self.path)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}", "memory", "name another file") from error
        self.sha256 = hashlib.file_digest(self._file, "sha256").hexdigest()
        self._file.seek(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Pairs:
        try:
            yield from READERS[self.path.suffix.lower()](self, self._file)
        except InputError as error:
            raise InputError(
                Message("{path} {problem}", path=self.path, problem=error.problem),
                "memory",
                error.way_out or "repair it",
            ) from error

    def skip(self, line: int, reason: str) -> None:
        """Record that a line contains no pair."""
        self._num_skipped += 1
        if len(self._skipped) < MAX_NAMED:
            self._skipped.append((line, reason))

    def finish(self, count: int) -> None:
        """Print a note about the skipped lines. Raises `InputError` if there are no pairs.

        count: The number of pairs.
        """
        if not count:
            first = f" (line {self._skipped[0][0]}: {self._skipped[0][1]})" if self._skipped else ""
            raise InputError(f"{self.path} has no pairs{first}", "memory", "name another file")
        if self._skipped:
            named = ", ".join(f"line {number} ({why})" for number, why in self._skipped)
            more = ", ..." if self._num_skipped > len(self._skipped) else ""
            lines = "1 line" if self._num_skipped == 1 else f"{self._num_skipped} lines"
            note(f"{self.path}: skipped {lines} without a pair: {named}{more}")

    def _tmx(self, file: BinaryIO) -> Pairs:
        from .tmx import Tmx

        tmx = Tmx(file, *self._wanted)
        tmx.choose()
        self.languages = tmx.languages
        return tmx.pairs()

    def _tsv(self, file: BinaryIO) -> Pairs:
        return self._each_line(file, pair_of_columns)

    def _records(self, file: BinaryIO) -> Pairs:
        return self._each_line(file, pair_of_record)

    def _each_line(self, file: BinaryIO, parse: Callable[[str], tuple[str, str] | None]) -> Pairs:
        for line in read_lines(file):
            try:
                pair = parse(decode_line(line))
            except InputError as error:
                self.skip(line.number, str(error))
            else:
                if pair is not None:
                    yield pair


READERS: dict[str, Callable[[PairFile, BinaryIO], Pairs]] = {
    ".tsv": PairFile._tsv,
    ".tab": PairFile._tsv,
    ".txt": PairFile._tsv,
    ".tmx": PairFile._tmx,
    ".jsonl": PairFile._records,
    ".ndjson": PairFile._records,
}


def pair_of_columns(line: str) -> tuple[str, str] | None:
    """Return the first two columns of a line, or None for a blank line. Raises `InputError`.

    A column that is quoted as in spreadsheets, with each inner quotation mark doubled, is unquoted. Other quotation
    marks are part of the text, as in parallel corpora. Each line is one pair, so texts cannot contain line breaks.
    """
    if not line.strip():
        return None
    source, tab, rest = line.partition("\t")
    if not tab:
        raise InputError("no tab")
    source, target = unquoted(source), unquoted(rest.partition("\t")[0])
    if not (source.strip() and target.strip()):
        raise InputError("a blank text")
    return source, target


def unquoted(column: str) -> str:
    match = QUOTED.fullmatch(column)
    return match[1].replace('""', '"') if match else column


def pair_of_record(line: str) -> tuple[str, str] | None:
    """Return a record's prompt and text, or None for an error or a blank text. Raises `InputError`."""
    if not line.strip():
        return None
    record = parse_json_object(line)
    if "error" in record or record.get("finish_reason") == "blank":
        return None
    for name in ("prompt", "text"):
        if not isinstance(record.get(name), str):
            raise InputError(f'no "{name}"')
        if not is_json_value(record[name]):  # JSON can escape a lone surrogate
            raise InputError(f'a lone surrogate in "{name}"')
    return (record["prompt"], record["text"]) if record["prompt"].strip() and record["text"].strip() else None
