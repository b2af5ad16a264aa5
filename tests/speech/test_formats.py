"""Transcripts as files, compared with those of openai-whisper's writers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.errors import InputError
from speculative_decoding.speech.formats import STREAMED, SUBTITLES, SubtitleOptions, srt, timestamp
from speculative_decoding.speech.segments import Segment, Word
from speculative_decoding.speech.transcription import Transcription, write
from tests.support.paths import ROOT

RECORDED = json.loads((ROOT / "tests/parity/goldens/transcript_formats.json").read_text(encoding="utf-8"))


def segment(start: float, text: str, words: list[Word] | None = None) -> Segment:
    return Segment(0, 0, start, start + 1, text, [], 0.0, 0.0, 1.0, 0.0, words)


def spoken(start: float, text: str) -> Segment:
    """A segment of one word."""
    return segment(start, text, [Word(text, start, start + 1, 0.5)])


def transcript(segments: list[Segment]) -> Transcription:
    return Transcription("".join(each.text for each in segments), segments, "en", 1.0, GenerationStats())


def recorded(name: str) -> Transcription:
    segments = [Segment(**fields) for fields in RECORDED["transcripts"][name]]
    for each in segments:
        each.words = None if each.words is None else [Word(**word) for word in each.words]  # type: ignore[arg-type]
    return transcript(segments)


@pytest.mark.parametrize(("name", "format", "options", "expected"), RECORDED["files"])
def test_files_equal_those_of_openai_whisper(name: str, format: str, options: dict[str, Any], expected: str) -> None:
    if format in SUBTITLES:  # openai-whisper replaces arrows in segments, but leaves those in words
        expected = re.sub(
            r"^(?![\d:.,]+ --> [\d:.,]+$).*$", lambda line: line[0].replace("-->", "->"), expected, flags=re.M
        )
    assert write(format, recorded(name), SubtitleOptions(**options)) == expected


@pytest.mark.parametrize("new", [segment, spoken])
@pytest.mark.parametrize("name", STREAMED)
def test_each_segment_is_written_before_the_next_one_is_read(name: str, new: Any) -> None:
    read = []

    def segments() -> Iterator[Segment]:
        for number in range(3):
            read.append(number)
            yield new(number, f" {number}")

    for piece in STREAMED[name](segments(), SubtitleOptions()):
        assert not read or str(read[-1]) in piece


def test_cues_across_segments_do_not_wait_for_the_end_of_the_recording() -> None:
    options = SubtitleOptions(max_line_width=3, max_line_count=2)
    pieces = srt((spoken(number, f" {number}") for number in count()), options)
    assert [each.split("\n", 2)[2] for each in islice(pieces, 2)] == ["0 1\n2 3\n\n", "4 5\n6 7\n\n"]


def test_a_cue_has_at_most_1000_words_and_a_line_1000_characters() -> None:
    words = [Word(" a", number, number, 0.5) for number in range(1001)]
    first, second = srt([segment(0, "", words)])
    assert [len(line) for line in first.split("\n")[2:]] == [999, 999, 0, 0] and second.endswith("\na\n\n")


@pytest.mark.parametrize("has_words", [False, True])
def test_an_empty_segment_at_the_start_hides_no_other(has_words: bool) -> None:
    """Segments without text have an empty list of words, whether words were requested or not."""
    pieces = srt([segment(0, "", []), (spoken if has_words else segment)(0, " a")])
    assert [*pieces] == ["1\n00:00:00,000 --> 00:00:01,000\na\n\n"]


def test_a_transcript_is_saved_in_the_format_of_the_suffix(tmp_path: Path) -> None:
    result = recorded("words")
    for name in (*STREAMED, "json"):
        result.save(tmp_path / f"talk.{name.upper()}")
        assert (tmp_path / f"talk.{name.upper()}").read_bytes() == write(name, result).encode()
    options = {"max_line_width": 20, "max_line_count": 2, "highlight_words": True}
    result.save(str(tmp_path / "talk.vtt"), **options)  # type: ignore[arg-type]
    assert (tmp_path / "talk.vtt").read_bytes() == write("vtt", result, SubtitleOptions(**options)).encode()


@pytest.mark.parametrize(
    ("name", "file", "options", "message"),
    [
        ("words", "a.srt", {"max_line_count": 2}, "max_line_count: has no effect without max_line_width; give both"),
        (
            "words",
            "a.srt",
            {"max_words_per_line": 2, "max_line_width": 9},
            "max_words_per_line: cannot be combined with max_line_width; leave one of them out",
        ),
        ("words", "a.srt", {"max_line_width": 0}, "max_line_width: must be a whole number >= 1, not 0"),
        (
            "words",
            "a.tsv",
            {"highlight_words": True},
            "highlight_words: has no effect on tsv; choose srt or vtt, or leave",
        ),
        ("plain", "a.vtt", {"max_line_width": 9}, "max_line_width: needs word times; turn word_timestamps on"),
        ("words", "a.text", {}, "path: a.text has no suffix of a format; choose .txt, .srt, .vtt, .tsv, .json"),
    ],
)
def test_what_would_have_no_effect_is_refused(name: str, file: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        recorded(name).save(file, **options)
    assert str(error.value).startswith(message)


ARROWS = {  # the text of a segment, and of a cue or line
    "a --> b": {"srt": "a -> b", "vtt": "a -> b", "txt": "a --> b", "tsv": "a --> b"},
    "a\tb": {"srt": "a\tb", "vtt": "a\tb", "txt": "a\tb", "tsv": "a b"},
    "a\n\nb": {"srt": "a\nb", "vtt": "a\nb", "txt": "a b", "tsv": "a b"},
    "a\r\n \r\nb": {"srt": "a\nb", "vtt": "a\nb", "txt": "a b", "tsv": "a b"},
    "a\nb": {"srt": "a\nb", "vtt": "a\nb", "txt": "a b", "tsv": "a b"},
    "a\rb": {"srt": "a\nb", "vtt": "a\nb", "txt": "a b", "tsv": "a b"},
}


@pytest.mark.parametrize("text", ARROWS, ids=repr)
@pytest.mark.parametrize("format", STREAMED)
@pytest.mark.parametrize("new", [segment, spoken], ids=["segments", "words"])
def test_text_has_no_delimiter_of_its_format(text: str, format: str, new: Any) -> None:
    """A line with an arrow begins a cue, and a blank line ends it (SubRip, WebVTT); a line and a tab end a value."""
    expected = ARROWS[text][format]
    cue = f"00:00.000 --> 00:01.000\n{expected}\n\n"
    files = {
        "srt": f"1\n00:{cue}".replace(".000", ",000").replace("> 00", "> 00:00"),
        "vtt": f"WEBVTT\n\n{cue}",
        "txt": f"{expected}\n",
        "tsv": f"start\tend\ttext\n0\t1000\t{expected}\n",
    }
    assert write(format, transcript([new(0, text)])) == files[format]


def test_arrows_are_replaced_where_words_meet_and_where_one_is_underlined() -> None:
    words = [Word(" a --", 0, 1, 0.5), Word("> b -->", 1, 2, 0.5)]
    for options in (SubtitleOptions(), SubtitleOptions(highlight_words=True)):
        lines = "".join(srt([segment(0, "", words)], options)).splitlines()
        assert len(lines) == 4 * (1 + options.highlight_words)
        assert not [line for line in lines[2::4] if "-->" in line]


def test_timestamps_round_to_milliseconds() -> None:
    assert [timestamp(each) for each in (0, 59.9996, 3599.9994, 360000)] == [
        "00:00:00.000",
        "00:01:00.000",
        "00:59:59.999",
        "100:00:00.000",
    ]
