"""Subtitles keep their cues, numbers, times and styling, whatever a model makes of their sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.pieces import Piece, parts_of
from speculative_decoding.documents.subtitles import MAX_CUES, parse
from speculative_decoding.documents.tokens import Block, Break, Kept, Literal
from tests.documents.decoders import document_with
from tests.support.rooms import needs_room

laws = settings(derandomize=True, deadline=None, max_examples=60)
FORMATS = ("srt", "vtt")
TIMES = re.compile(r"^.*-->.*$", re.MULTILINE)
NUMBER = re.compile(r"^\d+\r?$", re.MULTILINE)
TAG = re.compile(r"</?[ibu]>")
MARK = re.compile(r"^(?:- |>> |MAN 1: )|[\[\]]", re.MULTILINE)


def every_third(text: str) -> str:
    return " ".join(text.split()[::3])


def twice(text: str) -> str:
    return " ".join(word for word in text.split() for _ in range(2))


def parts(text: str, format: str | None = "srt") -> list[Block | Literal]:
    return [*parse(StringIO(text, newline=""), DocumentOptions(format=format))]


def pieces(text: str, format: str) -> list[Piece]:
    options = DocumentOptions(format=format)
    return [part for part in parts_of(StringIO(text, newline=""), options, "en") if isinstance(part, Piece)]


def blocks(text: str, format: str | None = "srt") -> list[str]:
    return [part.text.strip() for part in parts(text, format) if isinstance(part, Block)]


def clock(seconds: float, format: str) -> str:
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"00:{whole // 60:02d}:{whole % 60:02d}{',' if format == 'srt' else '.'}{thousandths:03d}"


@st.composite
def documents(draw: st.DrawFn, with_inner_markup: bool = True) -> tuple[str, str]:
    """Subtitles, some of them malformed, and their format."""
    format = draw(st.sampled_from(FORMATS))
    words = ["I", "you", "went", "to", "the", "end.", "Why?", "Oh", "wonderful,", "so...", "good"]
    if with_inner_markup:
        words += ["<b>he</b>", "<i>saw it</i>", "R&D", *["&amp;", "&lt;", "<00:01.000>", "<3"] * (format == "vtt")]
    line = st.lists(st.sampled_from(words), min_size=1, max_size=7).map(" ".join)
    marks = draw(st.sampled_from([[""], ["", "", "- ", ">> ", "MAN 1: ", "[noise] "]]))
    text = "WEBVTT\n\nSTYLE\n::cue(b) {}\n\n" if format == "vtt" else ""
    time = 0.0
    for number in range(1, draw(st.integers(1, 8)) + 1):
        if draw(st.sampled_from([True, True, False])):
            text += f"{number}\n"
        end = time + draw(st.sampled_from([0.5, 1.0, 3.0]))
        text += f"{clock(time, format)} --> {clock(end, format)}{draw(st.sampled_from(['', ' line:0']))}\n"
        lines = [draw(st.sampled_from(marks)) + draw(line) for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 2, 3])))]
        style = draw(st.sampled_from(["{}", "{}", "<i>{}</i>", "<u><b>{}</b></u>"]))
        each = draw(st.booleans())
        content = "\n".join(style.format(line) if each else line for line in lines)
        text += (content if each else style.format(content)) + "\n\n" if lines else "\n"
        time = end + draw(st.sampled_from([0.0, 0.0, 0.2, 5.0, -0.1]))
    text = text.removesuffix("\n" * draw(st.integers(0, 2)))
    return (text.replace("\n", "\r\n") if draw(st.booleans()) else text), format


@laws
@given(documents() | st.tuples(st.text("<>&;-:0123, \n\r\t♪[]()aB.{\\}", max_size=200), st.sampled_from(FORMATS)))
def test_the_parts_are_the_document(document: tuple[str, str]) -> None:
    assert "".join(part.raw for part in parts(*document)) == document[0]


@laws
@given(documents())
def test_a_model_that_copies_gives_the_document(document: tuple[str, str]) -> None:
    assert document_with(document[0], str, document[1]) == document[0]


@laws
@given(documents())
def test_a_model_that_swaps_cases_swaps_all_letters_and_changes_nothing_else(document: tuple[str, str]) -> None:
    text, format = document
    options = DocumentOptions(format=format)
    expected = "".join(
        part.raw
        if isinstance(part, Literal)
        else "".join(
            token.raw if token.text != token.raw or isinstance(token, Kept | Break) else token.raw.swapcase()
            for token in part.tokens
        )
        for part in parts_of(StringIO(text, newline=""), options, "en")
    )
    assert document_with(text, str.swapcase, format) == expected


@needs_room("speech")
@pytest.mark.parametrize("model", [every_third, twice])
@laws
@given(document=documents(with_inner_markup=False))
def test_cues_keep_their_times_and_styling_and_share_out_all_words(
    model: Callable[[str], str], document: tuple[str, str]
) -> None:
    from speculative_decoding.speech.draft_texts import cues_of

    text, format = document
    written = document_with(text, model, format)
    assert TIMES.findall(written) == TIMES.findall(text)
    assert NUMBER.findall(written) == NUMBER.findall(text)
    for before, after in zip(TIMES.split(text), TIMES.split(written), strict=True):
        tags = TAG.findall(after)
        assert {*tags} == {*TAG.findall(before)}
        assert all(tags.count(tag) == tags.count(tag.replace("</", "<")) for tag in tags)
        assert MARK.findall(after) == MARK.findall(before)
    words = [word for cue in cues_of(written) for word in MARK.sub("", TAG.sub("", cue.text)).split()]
    assert words == [word for piece in pieces(text, format) for word in model(piece.text).split()]
