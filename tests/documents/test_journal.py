"""A run that continues from its journal writes the same bytes, and decodes no finished piece again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.documents.journal import LOG_FORMAT, Journal
from speculative_decoding.documents.pieces import Piece
from speculative_decoding.documents.tokens import Text
from speculative_decoding.runs.log import Log
from tests.documents.decoders import decode_with

SETTINGS = {"seed": 0, "unit": "sentence", "prefixes": ("a",)}
TEXTS = ["wört eins", "zwei \U0001f600", 'a "b" \\ c', "vier"]
PIECES = [Piece([Text(text, text)], line) for line, text in enumerate(TEXTS, 1)]


def run(
    path: Path, pieces: list[Piece] = PIECES, *, stop: int | None = None, force: bool = False, **changed: Any
) -> tuple[list[str], int]:
    """Decode pieces with a journal. Returns the outputs and the number of decoded pieces. stop: the last piece."""
    outputs, count = [], 0
    with Log.open(path, LOG_FORMAT, SETTINGS | changed, force=force) as log:
        journal = Journal(log, force=force)
        for number, piece in enumerate(pieces, 1):
            decoded = journal.recorded(number, piece, "a.txt")
            if decoded is None:
                count += 1
                decoded = decode_with(piece, str.swapcase)
                journal.append(number, piece, decoded)
            outputs.append(decoded.text)
            if number == stop:
                break
    return outputs, count


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[bytes]:
    """The journal of a complete run."""
    run(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    yield content


def test_a_run_continues_after_a_cut_at_any_record(tmp_path: Path, whole: bytes) -> None:
    """Only pieces whose record is lost are decoded again, and the journal has the same bytes."""
    lines = whole.splitlines(keepends=True)
    for kept in range(len(TEXTS) + 1):
        (tmp_path / "journal").write_bytes(b"".join(lines[: kept + 1]) + bytes(9))
        assert run(tmp_path / "journal") == ([text.swapcase() for text in TEXTS], len(TEXTS) - kept)
        assert (tmp_path / "journal").read_bytes() == whole or kept == len(TEXTS)


def test_pieces_may_be_finished_in_any_order(tmp_path: Path, whole: bytes) -> None:
    header, *records = whole.splitlines(keepends=True)
    for order in itertools.permutations(records):
        (tmp_path / "journal").write_bytes(b"".join([header, *order[1:]]))
        assert run(tmp_path / "journal") == ([text.swapcase() for text in TEXTS], 1)


def test_a_record_after_damage_is_not_used(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "journal"
    lines = whole.splitlines(keepends=True)
    for damaged in (
        lines[1].replace(b'"piece": 1', b'"piece": []'),
        lines[1].replace(b'"piece": 1', b'"piece": 1e999'),
        lines[1].replace(b'"outputs"', b'"inputs"'),
        b"\n",
    ):
        path.write_bytes(b"".join([lines[0], damaged, *lines[2:]]))
        assert run(path)[1] == len(TEXTS) and path.read_bytes() == whole


def test_a_changed_source_is_refused_with_its_line_and_decoded_again_if_forced(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run(path)
    before = path.read_bytes()
    for changed in (Piece([Text("Zwei", "Zwei")], 2), Piece(PIECES[1].tokens, 3)):
        pieces = [PIECES[0], changed, *PIECES[2:]]
        path.write_bytes(before)
        with pytest.raises(InputError, match=r"a.txt \(line [23]\) or a document before it has changed"):
            run(path, pieces)
        assert path.read_bytes() == before
        outputs, count = run(path, pieces, force=True)
        assert count == 1 and outputs == [piece.text.swapcase() for piece in pieces]
        assert run(path, pieces, force=True) == (outputs, 0)
