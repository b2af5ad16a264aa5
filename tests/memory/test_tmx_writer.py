"""Written TMX files contain the same pairs when they are read, and are written atomically."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding import InputError
from speculative_decoding.memory import TranslationMemory
from speculative_decoding.memory.tmx_writer import NOT_XML, writing_tmx
from tests.memory.test_tmx import pairs_of

PAIRS = [
    ('Press <b> & "go".\n', "Drücke ]]> <b> & 'los'."),
    (" a \x00b\ud800", "ä\ufffe  b"),
    ("\x1f", "blank"),
    ("a", ""),
]
TEXT = st.text(st.characters(codec=None), max_size=12)


def written(path: Path, pairs: list[tuple[str, str]], source: str = "en", target: str = "de") -> Path:
    with writing_tmx(path, source, target) as add:
        for pair in pairs:
            add(*pair)
    return path


def readable(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs without characters that are invalid in XML, and with collapsed white space."""
    found = [(" ".join(NOT_XML.sub(" ", one).split()), " ".join(NOT_XML.sub(" ", two).split())) for one, two in pairs]
    return [pair for pair in found if all(pair)]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(st.tuples(TEXT, TEXT), max_size=4))
def test_a_file_has_the_pairs_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]
) -> None:
    pairs = [*pairs, ("one", "eins")]
    path = tmp_path_factory.getbasetemp() / "a.tmx"
    assert pairs_of(written(path, pairs), "en", "de") == readable(pairs)


def test_special_characters_survive_and_the_header_names_the_source(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tmx", PAIRS, "zh-Hant", "en-US")
    assert pairs_of(path) == readable(PAIRS) == [('Press <b> & "go".', "Drücke ]]> <b> & 'los'."), ("a b", "ä b")]
    memory = TranslationMemory.open(path)
    assert memory.languages == ("zh-Hant", "en-US") and memory.similar("a b") == [(1.0, "ä b")]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tmx", PAIRS)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), writing_tmx(path, "en", "de") as add:
        add("new", "neu")
        raise KeyboardInterrupt
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.tmx"]
    assert pairs_of(written(path, [("new", "neu")])) == [("new", "neu")]


def test_another_content_is_replaced_only_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "memory.tmx"
    for content, replaces in (("A", False), ("A", False), ("B", True)):
        with writing_tmx(path, "en", "de", replaces=replaces) as add:
            add(content, content)
    before = path.read_bytes()
    with (
        pytest.raises(InputError, match="write_memory: .*memory.tmx already exists with another content; move it"),
        writing_tmx(path, "en", "de", replaces=False) as add,
    ):
        add("C", "C")
    assert path.read_bytes() == before and [*tmp_path.iterdir()] == [path]
