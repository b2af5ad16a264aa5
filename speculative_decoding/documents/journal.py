"""The journal of a run of `document`: a log (`runs/log.py`) with a record for each finished piece.

A record contains the piece's number, a hash of its source, and its output. Records are written in order of completion.
"""

from __future__ import annotations

import hashlib

from ..runs.log import Log, LogFormat, parse_line
from .pieces import Piece
from .results import DecodedPiece

LOG_FORMAT = LogFormat("output", version=3)


class Journal:
    """Looks up the recorded pieces of an interrupted run, and records newly decoded pieces.

    Args:
        log: The open log with `LOG_FORMAT`. Its settings include everything that affects the outputs.
        force: Whether to decode changed pieces again, and to replace existing outputs.
    """

    def __init__(self, log: Log, *, force: bool = False) -> None:
        self.log = log
        self._records = log.records(parse_record)
        self._ahead: dict[int, tuple[str, DecodedPiece]] = {}  # keyed by number: records read but not used yet
        self.force = force

    def recorded(self, number: int, piece: Piece, name: str) -> DecodedPiece | None:
        """Return a piece's recorded output, or None if it must be decoded. Calls must be in ascending order of numbers.

        name: The name of the document, for messages.

        Raises:
            InputError: The source has changed since the piece was recorded.
        """
        wanted = digest(piece)
        while (found := self._ahead.get(number)) is None or found[0] != wanted:
            if found is not None and not self.force:
                problem = f"{name} (line {piece.line}) or a document before it has changed since the interrupted run"
                raise LOG_FORMAT.refusal(problem, option="files")
            record = next(self._records, None)
            if record is None:
                return None
            self._ahead[record[0]] = record[1:]
        del self._ahead[number]
        return found[1]

    def append(self, number: int, piece: Piece, decoded: DecodedPiece) -> None:
        """Record a decoded piece. An earlier run's file is not changed before the first call."""
        self.log.append({"piece": number, "source_sha256": digest(piece), "output": decoded.as_json()})


def parse_record(line: bytes) -> tuple[int, str, DecodedPiece] | None:
    """Return a record's piece number, source hash and output, or None for a damaged record."""
    fields = parse_line(line)
    try:
        return int(fields["piece"]), str(fields["source_sha256"]), DecodedPiece.from_json(fields["output"])
    except (KeyError, OverflowError, TypeError, ValueError):
        return None


def digest(piece: Piece) -> str:
    """Return a hash of the line number and the raw text of a piece."""
    return hashlib.sha256(f"{piece.line} {piece.raw}".encode(errors="surrogatepass")).hexdigest()[:16]
