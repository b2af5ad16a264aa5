"""Pairs are read from tab-separated columns and job records. A note names the lines without a pair."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
import warnings
from pathlib import Path

import pytest

from speculative_decoding import InputError
from speculative_decoding.errors import Note
from speculative_decoding.memory import TranslationMemory
from speculative_decoding.memory.pairs import PairFile

RECORD = {"line": 1, "prompt": "A prompt", "text": "Ein Text", "finish_reason": "stop", "input_sha256": "00"}


def read(path: Path) -> list[tuple[str, str]]:
    with PairFile(path, None, None) as file:
        found = [*file]
        file.finish(len(found))
        return found


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("suffix", [".tsv", ".tab", ".txt", ".TSV"])
def test_the_first_two_columns_are_a_pair(suffix: str, end: str, encoding: str, tmp_path: Path) -> None:
    content = end.join(["Grüße\tgreetings\tde\t1", "", 'say "no"\tsag „nein“', "last\tletzte"])
    path = written(tmp_path, f"a{suffix}", content.encode(encoding))
    assert read(path) == [("Grüße", "greetings"), ('say "no"', "sag „nein“"), ("last", "letzte")]


def test_columns_are_unquoted_only_as_spreadsheets_quote_them(tmp_path: Path) -> None:
    lines = {
        '"He said ""no""."\t"Nein, nein"': ('He said "no".', "Nein, nein"),
        '"No," he said.\t„Nein“': ('"No," he said.', "„Nein“"),
        '"a" and "b"\tx': ('"a" and "b"', "x"),
        '"open\tx': ('"open', "x"),
    }
    assert read(written(tmp_path, "a.tsv", "\n".join(lines))) == [*lines.values()]


def test_lines_without_a_pair_are_skipped_and_named(tmp_path: Path) -> None:
    lines = ["a\tb", "no tab", " \tb", "a\t", "\xff", "c\td", *["x"] * 5]
    path = written(tmp_path, "a.tsv", "\n".join(lines).encode("latin-1"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read(path) == [("a", "b"), ("c", "d")]
    (found,) = caught
    assert found.category is Note
    assert str(found.message) == (
        f"{path}: skipped 9 lines without a pair: line 2 (no tab), line 3 (a blank text), line 4 (a blank text), "
        "line 5 (not UTF-8 (invalid start byte, byte 1); convert it to UTF-8), line 7 (no tab), ..."
    )


def test_records_of_a_job_are_pairs_except_for_errors_and_blank_ones(tmp_path: Path) -> None:
    records = [
        RECORD,
        {"line": 2, "error": "prompt: has 600 tokens", "input_sha256": "00"},
        {"line": 3, "text": "", "finish_reason": "blank", "input_sha256": "00"},
        RECORD | {"prompt": "B", "text": "B", "finish_reason": "length", "own": [1]},
        RECORD | {"text": " "},
        RECORD | {"prompt": "C", "text": "half of \ud83d"},
        RECORD | {"prompt": "half of \ude00"},
    ]
    path = written(tmp_path, "old.jsonl", "\n".join(map(json.dumps, records)))
    with pytest.warns(
        Note, match=r"line 6 \(a lone surrogate in \"text\"\), line 7 \(a lone surrogate in \"prompt\"\)"
    ):
        assert read(path) == [("A prompt", "Ein Text"), ("B", "B")]
    torn = path.read_text() + '\n{"line": 8, "prom'
    with pytest.warns(Note, match=r"skipped 3 lines without a pair: .* line 8 \(not JSON"):
        assert len(read(written(tmp_path, "torn.jsonl", torn))) == 2


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.tsv", "", "has no pairs; name another file"),
        ("a.tsv", "one\ntwo\n", "has no pairs (line 1: no tab); name another file"),
        ("a.tsv", "a\tb\n".encode("utf-16-le"), "UTF-16 without a byte-order mark"),
        ("a.tsv", b"\x00\xff" * 10_000, "has no pairs (line 1: "),
        ("a.tsv", b"x" * (1 << 25), "longer than 16777216 bytes; split it"),
        ("a.jsonl", json.dumps({"line": 1, "text": "old"}), 'has no pairs (line 1: no "prompt")'),
        ("a.jsonl", json.dumps([1]), "has no pairs (line 1: must be a JSON object"),
        ("a.jsonl", "[" * 100_000, "has no pairs (line 1: "),
        ("a.csv", "a,b", "has an unknown suffix; name a file of tab-separated columns (.tsv), TMX (.tmx), or records"),
    ],
)
def test_a_file_without_pairs_ends_in_one_line(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, content)
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(InputError) as caught:
        TranslationMemory.open(path)
    assert time.process_time() - started < 20 and tracemalloc.get_traced_memory()[1] < 2**27
    tracemalloc.stop()
    assert message in str(caught.value) and str(path) in str(caught.value) and caught.value.field == "memory"


def test_a_missing_file_and_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tsv")
    for name, message in (("no.tsv", "No such file or directory"), ("pipe.tsv", "not a regular file")):
        with pytest.raises(InputError, match=f"memory: .*{name}: {message}; name another file"):
            TranslationMemory.open(tmp_path / name)
