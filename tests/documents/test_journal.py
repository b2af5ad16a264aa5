"""A run that is continued from its journal writes the same bytes, and decodes no finished piece again."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.cli.parser import flag
from speculative_decoding.documents.journal import Journal
from speculative_decoding.documents.pieces import Piece
from speculative_decoding.documents.tokens import Text
from tests.documents.decoders import decode_with

SETTINGS = {"seed": 0, "unit": "sentence", "prefixes": ("a",)}
TEXTS = ["wört eins", "zwei \U0001f600", 'a "b" \\ c', "vier"]
PIECES = [Piece([Text(text, text)], line) for line, text in enumerate(TEXTS, 1)]


def run(
    path: Path, pieces: list[Piece] = PIECES, *, stop: int | None = None, force: bool = False, **changed: Any
) -> tuple[list[str], int]:
    """Decode pieces with a journal; return the outputs, and how many were decoded. stop: interrupt after this piece."""
    outputs, count = [], 0
    with Journal.open(path, SETTINGS | changed, force=force) as journal:
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


@pytest.mark.parametrize("lost", [b"", bytes(500), b"\xff\xfe\n{}\n"])
def test_a_run_continues_after_a_cut_at_any_place(tmp_path: Path, whole: bytes, lost: bytes) -> None:
    """Only pieces whose record is lost are decoded again, and the journal has the same bytes."""
    path = tmp_path / "journal"
    borders = [position for position, byte in enumerate(whole, 1) if byte == ord("\n")]
    for size in {*range(0, len(whole), 9), *(border + each for border in borders for each in (-1, 0, 1))}:
        if lost.endswith(b"\n") and b"\n" not in whole[:size]:
            continue  # the first line is on disk before the second
        path.write_bytes(whole[:size] + lost)
        kept = max(0, whole[:size].count(b"\n") - 1)
        outputs, count = run(path)
        assert outputs == [text.swapcase() for text in TEXTS] and count == len(TEXTS) - kept, size
        assert path.read_bytes() == whole or size >= len(whole), size


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


def test_exactness_of_the_first_run_is_recorded(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal", SETTINGS) as journal:
        assert journal.is_new
        journal.settings["exact"] = True
        journal.append(1, PIECES[0], decode_with(PIECES[0], str.swapcase))
    with Journal.open(tmp_path / "journal", SETTINGS) as journal:
        assert not journal.is_new and journal.settings["exact"] is True
        journal.remove()
    assert os.listdir(tmp_path) == []


def test_other_settings_are_refused_and_the_journal_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run(path, stop=2)
    before = path.read_bytes()
    with pytest.raises(InputError) as error:
        run(path, seed=1)
    assert error.value.message(flag) == (
        f"--output: {path} is the journal of a run with other settings (seed was 0, is 1); give the same settings, or "
        "start over with --force"
    )
    with pytest.raises(InputError, match="written by another version; finish the run with that version"):
        path.write_bytes(before.replace(b'"version": 1', b'"version": 0'))
        run(path)
    path.write_bytes(before)
    assert run(path, force=True)[1] == 2  # the same settings continue
    assert run(path, force=True, seed=1)[1] == 4 and run(path, seed=1)[1] == 0


def test_a_changed_source_is_refused_with_its_line_and_decoded_again_if_forced(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    run(path)
    before = path.read_bytes()
    for changed in (Piece([Text("Zwei", "Zwei")], 2), Piece(PIECES[1].tokens, 3)):
        pieces = [PIECES[0], changed, *PIECES[2:]]
        path.write_bytes(before)
        with pytest.raises(InputError, match=r"a.txt has changed since the interrupted run \(line [23]\); restore it"):
            run(path, pieces)
        assert path.read_bytes() == before
        outputs, count = run(path, pieces, force=True)
        assert count == 1 and outputs == [piece.text.swapcase() for piece in pieces]
        assert run(path, pieces, force=True) == (outputs, 0)


@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_is_no_journal_is_never_touched(tmp_path: Path, force: bool) -> None:
    path = tmp_path / "journal"
    for content in (b"years of work", b'{"version": 1}\n', b'{"settings": {}}\n'):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is needed for the journal, but is another file; name another output"):
            run(path, force=force)
        assert path.read_bytes() == content
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is another file"):
        run(path, force=force)


def test_a_second_run_is_refused_and_a_run_without_pieces_leaves_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal.open(path, SETTINGS):
        with pytest.raises(InputError, match="another run is writing it"):
            run(path)
        assert path.exists()
    assert not path.exists()
    with pytest.raises(InputError, match=r"cannot be written \(No such file or directory\)"):
        run(tmp_path / "nowhere" / "journal")


def test_a_full_disk_keeps_the_finished_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    write: Callable[[Journal, dict[str, Any]], None] = Journal._write

    def fail(journal: Journal, fields: dict[str, Any]) -> None:
        if fields.get("piece") == 3:
            journal._writer.write(json.dumps(fields).encode()[:20])
            raise OSError(28, "No space left on device")
        write(journal, fields)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_write", fail)
        with pytest.raises(InputError, match=r"\(No space left on device\); the finished pieces are kept"):
            run(path)
    assert run(path)[1] == 2
