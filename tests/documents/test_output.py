"""Outputs are written atomically and in bounded memory, and a killed run continues with the same bytes."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import InputError, Session
from speculative_decoding.decoding.results import GenerationResult, GenerationStats
from speculative_decoding.documents.command import Run, document_of, opened_journal
from speculative_decoding.documents.decoder import DocumentDecoder
from speculative_decoding.documents.decoding import Rules
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.output import Destinations
from speculative_decoding.rows.scheduling import BatchResult
from speculative_decoding.runs import log, places
from tests.support.kill_states import KillStates
from tests.support.tiny import tiny_model
from tests.support.together import Letters

FILES = {
    "a.txt": b"One line.\r\nAnother  one\r\n\r\n--- 12\nThe last line",
    "b.txt": "\ufeffWört: äöü.\n".encode("utf-16-le"),
    "empty.txt": b"",
    "c.jsonl": b'{"id": 1, "text": "a \\u00e4 b"}\n',
}
SWAPPED = {
    "a.txt": b"oNE LINE.\r\naNOTHER  ONE\r\n\r\n--- 12\ntHE LAST LINE",
    "b.txt": "\ufeffwÖRT: ÄÖÜ.\n".encode("utf-16-le"),
    "empty.txt": b"",
    "c.jsonl": b'{"id": 1, "text": "A \\u00c4 B"}\n',
}
PIECES = 6
RULES = Rules()


class SwappingPrompts:
    """A scheduler of prompts that decodes them immediately with `str.swapcase`."""

    wants_more = is_idle = True
    running = waiting = 0

    def __init__(self) -> None:
        self.decoded = 0

    def submit(self, item: tuple[Any, Mapping[str, Any]]) -> list[BatchResult[GenerationResult]]:
        number, prompt = item
        self.decoded += 1
        return [BatchResult(number, GenerationResult(prompt["prompt"].swapcase(), [], "stop", GenerationStats()))]


def swapping_decoder(run: Run, prompts: SwappingPrompts) -> DocumentDecoder:
    session: Any = Session(tiny_model(), Letters())
    session.prompt_scheduler = lambda slots, **options: prompts
    return DocumentDecoder(session, RULES, steps=partial(run.steps, RULES))


def decode(folder: Path, *, force: bool = False, stop: int | None = None) -> int:
    """Decode the files of a folder to "out". Returns the number of decoded pieces. stop: pieces before Ctrl-C."""
    places = Destinations([str(folder / name) for name in FILES], str(folder / "out"))
    options = DocumentOptions(unit="line")
    documents = [document_of(*each, options) for each in zip(places.files, places.outputs, strict=True)]
    with ExitStack() as stack:
        for document in documents:
            document.check(stack)
        journal = opened_journal(stack, {"unit": "line"}, places, force)
        run = Run(documents, "en", None, journal)
        prompts = SwappingPrompts()

        def add(source: str, target: str) -> None:
            if run.pieces == stop:
                raise KeyboardInterrupt

        run.decode(swapping_decoder(run, prompts), add, None)
        assert journal is not None and run.pieces == PIECES
        journal.log.remove()
    return prompts.decoded


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    for name, content in FILES.items():
        (made / name).write_bytes(content)
    return made


def test_all_documents_are_written_with_the_permissions_of_new_files(folder: Path) -> None:
    mask = os.umask(0o027)
    try:
        assert decode(folder) == PIECES
    finally:
        os.umask(mask)
    assert outputs(folder) == SWAPPED
    assert {path.stat().st_mode & 0o777 for path in (folder / "out").iterdir()} == {0o640}


def test_an_interrupted_run_decodes_no_piece_twice(folder: Path) -> None:
    for stop in range(1, PIECES + 1):
        with pytest.raises(KeyboardInterrupt):
            decode(folder, stop=stop, force=stop == 1)
        assert (folder / "out" / ".documents.journal").exists()
        assert not [path for path in (folder / "out").iterdir() if "partial" in path.name]
    assert decode(folder) == 0 and outputs(folder) == SWAPPED


def test_after_a_kill_at_any_moment_the_next_run_gives_the_same_bytes_and_cleans_up(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow, and needed only after a power failure
    states = KillStates(folder, tmp_path / "states")
    with monkeypatch.context() as patch:
        states.around(patch, log, "write_all")
        states.around(patch, Path, "replace")
        states.around(patch, Path, "unlink")
        assert decode(folder) == PIECES
    counts = []
    for state in states.paths:
        for name, content in (outputs(state) if (state / "out").exists() else {}).items():
            assert SWAPPED.get(name, content) == content  # no output is partial
        finished = len(outputs(state)) == len(SWAPPED)
        counts.append(0 if finished and outputs(state) == SWAPPED else decode(state))
        assert outputs(state) == SWAPPED
    assert len(counts) > 20 and counts == sorted(counts, reverse=True) and {*counts} == {*range(PIECES + 1)}


def test_a_full_disk_leaves_no_part_of_an_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "a.txt").write_text("an earlier output")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(places.os, "fsync", fail)
        with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)") as error:
            decode(folder, force=True)
    assert "\n" not in str(error.value)
    assert (folder / "out" / "a.txt").read_text() == "an earlier output"
    assert not [path for path in (folder / "out").iterdir() if "partial" in path.name]
    assert decode(folder, force=True) <= PIECES and outputs(folder) == SWAPPED


def test_existing_outputs_are_kept_without_force(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "c.jsonl").write_text("years of work")
    with pytest.raises(InputError, match="c.jsonl already exists; move it, name another output, or replace it"):
        decode(folder)
    assert outputs(folder) == {"c.jsonl": b"years of work"}
    assert decode(folder, force=True) == PIECES and outputs(folder) == SWAPPED


@pytest.mark.parametrize("clock", [-(10**8), 0, 5, 10**8])
def test_an_output_that_was_edited_after_an_interruption_is_not_replaced(folder: Path, clock: int) -> None:
    """This does not depend on file times. clock: seconds by which the journal seems to be newer."""
    edited = folder / "out" / "a.txt"
    with pytest.raises(KeyboardInterrupt):
        decode(folder, stop=5)
    assert edited.read_bytes() == SWAPPED["a.txt"]
    for content in (b"years of work", SWAPPED["a.txt"]):
        edited.write_bytes(content)
        later = edited.stat().st_mtime + clock
        os.utime(folder / "out" / ".documents.journal", (later, later))
        if content != SWAPPED["a.txt"]:
            with pytest.raises(
                InputError,
                match="a.txt already exists with another content; move it, name another",
            ):
                decode(folder)
            assert edited.read_bytes() == content
    assert decode(folder) == 1 and outputs(folder) == SWAPPED


def test_a_wrong_line_is_found_before_anything_is_decoded(folder: Path) -> None:
    (folder / "c.jsonl").write_text('{"text": "a"}\n[1]\n')
    with pytest.raises(InputError, match=r"^.*c\.jsonl: line 2: not a JSON object"):
        decode(folder)
    assert not (folder / "out").exists()


def test_a_link_is_written_through(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "a.txt").symlink_to("../elsewhere.txt")
    decode(folder)
    assert (folder / "out" / "a.txt").is_symlink() and (folder / "elsewhere.txt").read_bytes() == SWAPPED["a.txt"]


def test_memory_does_not_grow_with_a_text(folder: Path, tmp_path: Path) -> None:
    decode(folder)  # imports all modules
    lines = {"a.txt": "1" * 2000 + "\n", "b.jsonl": f'{{"id": "{"x" * 2000}", "text": "{"1" * 400}"}}\n'}
    words = {"a.txt": "A word\n", "b.jsonl": '{"text": "a word"}\n'}
    names = [str(tmp_path / name) for name in lines]
    for name, line in lines.items():
        (tmp_path / name).write_text((line * 99 + words[name]) * 4)
    places = Destinations(names, str(tmp_path / "out"))
    options = DocumentOptions(unit="line")
    documents = [document_of(*each, options) for each in zip(places.files, places.outputs, strict=True)]
    places.make_folder()
    run = Run(documents, "en", None, None)
    tracemalloc.start()
    try:
        with ExitStack() as stack:
            documents[0].check(stack)
            documents[1].check(stack)
            run.decode(swapping_decoder(run, SwappingPrompts()), None, None)
        assert tracemalloc.get_traced_memory()[1] < 250_000
    finally:
        tracemalloc.stop()
    assert run.pieces == 8
    for name in lines:
        content = (tmp_path / name).read_bytes()
        assert len((tmp_path / "out" / name).read_bytes()) == len(content) > 790_000
