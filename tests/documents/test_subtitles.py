"""Subtitles keep their cues, numbers, times and styling with any model outputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.documents.options import UNITS, DocumentOptions
from speculative_decoding.documents.output_checks import DocumentFindings
from speculative_decoding.documents.pieces import Piece, parts_of
from speculative_decoding.documents.subtitles import MAX_CUES, cues_of, parse
from speculative_decoding.documents.tokens import Block, Break, Kept, Literal
from tests.documents.decoders import decode_with, document_with
from tests.support.subpackages import needs_subpackage

examples = settings(derandomize=True, deadline=None, max_examples=40)
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
def documents(draw: st.DrawFn, with_styles: bool = True, with_specials: bool = True) -> tuple[str, str]:
    """Subtitles, some of them malformed, and their format."""
    format = draw(st.sampled_from(FORMATS))
    words = ["I", "you", "went", "to", "the", "end.", "Why?", "Oh", "wonderful,", "so...", "good"]
    words += ["<b>he</b>", "<i>saw it</i>"] * with_styles
    words += ["R&D", "so\\Nwe", "a\\hb", *["&amp;", "&lt;", "<00:01.000>", "<3"] * (format == "vtt")] * with_specials
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


@examples
@given(documents() | st.tuples(st.text("<>&;-:0123, Nh\n\r\t♪[]()aB.{\\}", max_size=200), st.sampled_from(FORMATS)))
def test_the_parts_are_the_document(document: tuple[str, str]) -> None:
    assert "".join(part.raw for part in parts(*document)) == document[0]


@examples
@given(documents())
def test_a_model_that_copies_gives_the_document(document: tuple[str, str]) -> None:
    assert document_with(document[0], str, document[1]) == document[0]


@examples
@given(documents(), st.sampled_from(UNITS))
def test_a_model_that_swaps_cases_swaps_all_letters_and_changes_nothing_else(
    document: tuple[str, str], unit: str
) -> None:
    text, format = document
    options = DocumentOptions(format=format, unit=unit)
    expected = "".join(
        part.raw
        if isinstance(part, Literal)
        else "".join(
            token.raw if token.text != token.raw or isinstance(token, Kept | Break) else token.raw.swapcase()
            for token in part.tokens
        )
        for part in parts_of(StringIO(text, newline=""), options, "en")
    )
    assert document_with(text, str.swapcase, format, unit=unit) == expected


MODELS = pytest.mark.parametrize("model", [every_third, twice])


@MODELS
@examples
@given(document=documents(with_specials=False))
def test_styling_is_balanced_in_each_cue(model: Callable[[str], str], document: tuple[str, str]) -> None:
    for cue in TIMES.split(document_with(document[0], model, document[1])):
        tags = TAG.findall(cue)
        assert all(tags.count(tag) == tags.count(tag.replace("</", "<")) for tag in tags)


@needs_subpackage("speech")
@MODELS
@examples
@given(document=documents(with_styles=False, with_specials=False))
def test_cues_keep_their_times_and_styles_and_share_out_all_words(
    model: Callable[[str], str], document: tuple[str, str]
) -> None:
    from speculative_decoding.speech.draft_texts import cues_of

    text, format = document
    written = document_with(text, model, format)
    assert TIMES.findall(written) == TIMES.findall(text)
    assert NUMBER.findall(written) == NUMBER.findall(text)
    for before, after in zip(TIMES.split(text), TIMES.split(written), strict=True):
        assert {*TAG.findall(after)} == {*TAG.findall(before)}
        assert MARK.findall(after) == MARK.findall(before)
    words = [word for cue in cues_of(written) for word in MARK.sub("", TAG.sub("", cue.text)).split()]
    assert words == [word for piece in pieces(text, format) for word in model(piece.text).split()]


def srt(*cues: tuple[float, float, str]) -> str:
    rows = enumerate(cues, 1)
    return "".join(f"{n}\n{clock(start, 'srt')} --> {clock(end, 'srt')}\n{text}\n\n" for n, (start, end, text) in rows)


def row(*texts: str) -> str:
    return srt(*((index, index + 1, text) for index, text in enumerate(texts)))


VTT = "WEBVTT\n\n"
BLOCKS = {
    "a sentence over two cues": (row("I went", "home."), ["I went home."]),
    "two lines": (row("I went\nhome.\nYes."), ["I went home. Yes."]),
    "the end of a sentence": (row("I went.", "You stayed."), ["I went.", "You stayed."]),
    "an end within quotes": (row("“I went.”", "You stayed."), ["“I went.”", "You stayed."]),
    "an end in another script": (row("我走了。", "你没走"), ["我走了。", "你没走"]),
    "scripts without spaces": (row("我走\n了", "然后"), ["我走了然后"]),
    "a dot before a small letter": (row("I went...", "home, i.e.", "here"), ["I went... home, i.e. here"]),
    "a pause": (srt((0, 1, "I went"), (3.5, 4, "home")), ["I went", "home"]),
    "a short pause": (srt((0, 1, "I went"), (2.5, 4, "home")), ["I went home"]),
    "cues at the same time": (srt((0, 3, "I went"), (1, 4, "home")), ["I went", "home"]),
    "a cue without text": (row("I went", "", "home"), ["I went", "home"]),
    "dashes": (row("- I went\n- Who?", "You", "-I"), ["I went", "Who?", "You", "I"]),
    "styled dashes": (row("<i>- I went\n\u2013 Who?</i>"), ["I went", "Who?"]),
    "a number below zero": (row("It was", "-5 degrees"), ["It was -5 degrees"]),
    "chevrons": (row("I went", ">> home"), ["I went", "home"]),
    "a name": (row("I went", "MAN 1: home", "WE SAID: HOME"), ["I went", "home WE SAID: HOME"]),
    "sounds": (
        row("[door closes] I went", "(sighs)", "(he said) home"),
        ["door closes", "I went", "sighs", "(he said) home"],
    ),
    "songs": (row("♪ la la ♪\n♪ lo lo", "♪ li"), ["la la", "lo lo", "li"]),
    "no numbers": ("00:01,000 --> 00:02,000\nI went\n\n00:02,000 --> 00:03,000\nhome", ["I went home"]),
    "no blank line": ("1\n0:00:01,0 --> 0:00:02,0\nI went\n2\n0:00:02,0 --> 0:00:03,0\nhome", ["I went home"]),
    "a blank line in a cue": (row("I went\n\nhome", "soon"), ["I went", "home soon"]),
    "numbers as text": (row("42", "7 days"), ["42 7 days"]),
    "unbalanced tags": (row("I went</i>\n<i>home</i>", "</b>now<b>"), ["I went home now"]),
    "a cue of markup": (row("I went", "<i></i>", "home"), ["I went", "home"]),
    "an override": (row("{\\an8}I went", "{\\an8}home"), ["I went home"]),
    "symbols": (row("1 < 2 & <3 {x}"), ["1 < 2 & <3 {x}"]),
    "header, comments and style sheets": (
        "WEBVTT - x\nKind: captions\n\nSTYLE\n::cue {}\n\nNOTE I went\nhome\n\n"
        "id\n00:01.000 --> 00:02.000 line:0\nHi\n\nlost\n",
        ["Hi"],
    ),
    "voices": (
        VTT + "00:00.000 --> 00:01.000\n<v Fred>I went\n\n00:01.000 --> 00:02.000\n<v Fred>home\n\n"
        "00:02.000 --> 00:03.000\n<v Mary>yes</v> <v Fred>no</v>",
        ["I went home", "yes", "no"],
    ),
    "entities": (VTT + "00:00.000 --> 00:01.000\n&gt;&gt; I &amp; you &lt;3 &#1; &x;\n", ["I & you <3 &#1; &x;"]),
    "tags that no player knows": (VTT + "00:00.000 --> 00:01.000\nI <3 you\n", ["I"]),
    "times in a cue": (
        VTT + "00:00.000 --> 00:01.000\nI <00:00.500>went\n\n00:01.000 --> 00:02.000\nhome",
        ["I went", "home"],
    ),
    "an arrow": (VTT + "00:00.000 --> 00:01.000\nI went\n--> home\n", ["I went"]),
    "ruby": (VTT + "00:00.000 --> 00:01.000\n<ruby>漢<rt>kan</rt></ruby>字", ["漢字"]),
    "guard: a comment with a time": (VTT + "NOTE\n00:00:01.000 is the start\nof it\n", []),
    "no cues": ("I went\n\n12\nhome", []),
}


@pytest.mark.parametrize(("document", "expected"), BLOCKS.values(), ids=BLOCKS)
def test_a_block_is_a_run_of_cues_up_to_a_sentence_a_pause_or_a_speaker(document: str, expected: list[str]) -> None:
    assert blocks(document, None) == expected


# Timing lines that other programs read or write -> the first time in seconds
CLOCKS = {
    "-00:00:01,500 --> 00:00:03,000": -1.5,  # shifted before 0
    "0-1:59:58,500 --> 0-1:59:59,000": -1.5,  # the same, with a sign in each field
    "00:00:-1,500 --> 00:00:00,500": -0.5,  # FFmpeg reads each field with %d
    "-0:00:02.000 --> -0:00:01.000": -2.0,
    "guard: 00:00:01,5 --> 00:00:02,25": 1.5,
    "00:00:01,500000 --> 00:00:02,250000": 1.5,  # microseconds
    "00:00:01.123456789 --> 00:00:02.5": 1.123456789,
    "guard: 00:00:01 --> 00:00:02": 1,
    "00:00:01, --> 00:00:02,": 1,  # the library srt
    "00\uff1a00\uff1a01\uff0c500 --> 00\uff1a00\uff1a02\uff0c500": 1.5,  # the same
    "00:00:01:500 - -> 00:00:02:500": 1.5,  # the same
    "00.00.01.500 --> 00.00.02.500": 1.5,  # the same
    "00:00: 1,500 --> 00:00: 2,500": 1.5,  # FFmpeg
    "guard:   00:00:01,500-->00:00:02,500": 1.5,  # FFmpeg
    "00:00:01,500 -> 00:00:02,500": 1.5,  # pysubs2
    "00:00:01,500 \u2013> 00:00:02,500": 1.5,  # pysubs2, after an automatic correction
    "00:00:01,500 --&gt; 00:00:02,500": 1.5,  # pysubs2, copied from a web page
    "00:00:01,500 \u2192 00:00:02,500": 1.5,  # pysubs2
    "00:00:01;12 --> 00:00:02;12": 1.12,  # frames
    "01.500 --> 02.500": 1.5,
    "guard: 00:01.500 --> 00:02.500": 1.5,  # WebVTT
    "guard: 123:00:01.500 --> 123:00:02.500 align:start position:0%": 442_801.5,  # WebVTT
    "guard: 00:00:01,500 --> 00:00:02,500  X1:201 X2:516 Y1:397 Y2:423": 1.5,  # FFmpeg
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("times", "start"), CLOCKS.items())
def test_no_line_of_times_is_text(times: str, start: float, format: str) -> None:
    times = times.removeprefix("guard: ")
    text = f"{'WEBVTT' * (format == 'vtt')}\n\n1\n{times}\nOpen the page.\n\n2\n{times}\nClose it.\n"
    assert blocks(text, format) == ["Open the page.", "Close it."]
    assert document_with(text, lambda text: "Ja.", format).splitlines().count(times) == 2
    cue = next(cues_of(StringIO(text, newline=""), format == "vtt"))
    assert cue.start == pytest.approx(start) and cue.end > cue.start and cue.finding is None


@pytest.mark.parametrize("number", ["-1", "1.5", "0", " 12 "])
def test_the_number_of_a_cue_is_not_text(number: str) -> None:
    """As the library srt reads it. The last two are guards."""
    text = row("I went", "home.").replace("2\n", f"{number}\n", 1)
    assert blocks(text) == ["I went home."]


# Malformed timing lines, which have an arrow or a clock
UNKNOWN = [
    *("00:00:01,000 00:00:02,000", "00:00:01,000,00:00:02,000", "-00:00:01,500 ==> later", "00:00:01,000 -->"),
    "soon --> later",
    "00:xx:01,000 --> 00:00:02,000",
    "00:00:01,000 --> 00:00:02,000 Hello there",
    "File --> Save",
]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("line", UNKNOWN)
def test_a_line_of_times_that_is_not_understood_is_copied_and_listed(line: str, format: str) -> None:
    text = f"{'WEBVTT' * (format == 'vtt')}\n\n00:01,000 --> 00:02,000\nI went\n{line}\nhome.\n"
    assert blocks(text, format) == ["I went", "home."]
    assert document_with(text, str.upper, format).splitlines()[-2] == line
    found = DocumentFindings()
    for part in parts_of(StringIO(text, newline=""), DocumentOptions(format=format), "en"):
        found.add(part, decode_with(part, str.upper) if isinstance(part, Piece) else None)
    assert found.by_line() == [(5, "copied", line)]


def cues(*texts: str) -> tuple[str, str]:
    """Return captions as SRT and VTT, without pauses."""
    text = row(*texts)
    return text, VTT + re.sub(r",(\d{3})", r".\1", text)


ROLLING = {
    "the same": (("the value is here", "the value is here"), ["the value is here"] * 2),
    "the same three times": (("I went", "I went", "I went"), ["I went"] * 3),
    "after another cue": (("You said that", "I went", "I went"), ["You said that", "I went", "I went"]),
    "styled": (("I went", "<i>I went</i>"), ["I went"] * 2),
    "two lines that move up": (
        ("so today we", "so today we\nare going", "are going\nto talk"),
        ["so today we", "so today we", "are going", "are going", "to talk"],
    ),
    "three lines": (
        ("a b\nc d", "a b\nc d\ne f", "c d\ne f\ng h"),
        ["a b", "c d", "a b", "c d", "e f", "c d", "e f", "g h"],
    ),
    "a sentence of two lines, then its last": (
        ("He went home\nwith my", "with my\nfriend"),
        ["He went home", "with my", "with my", "friend"],
    ),
    "words that come one by one": (
        ("I went", "I went home", "I went home late"),
        ["I went", "I went home", "I went home late"],
    ),
    "words that move": (
        ("one two three four", "two three four five", "three four five six"),
        ["one two three four", "two three four five", "three four five six"],
    ),
    "a script without spaces": (("我们今天", "我们今天要去"), ["我们今天", "我们今天要去"]),
    "guard: one word twice": (("I know that", "that he went"), ["I know that that he went"]),
    "guard: no repetition": (("I went home", "with my friend"), ["I went home with my friend"]),
}


@pytest.mark.parametrize(("texts", "expected"), ROLLING.values(), ids=ROLLING)
def test_a_text_that_the_next_cue_repeats_is_decoded_alone_in_both(texts: tuple[str, ...], expected: list[str]) -> None:
    for text, format in zip(cues(*texts), FORMATS, strict=True):
        assert blocks(text, format) == expected


YOUTUBE = """WEBVTT
Kind: captions
Language: en

00:00:00.160 --> 00:00:02.310 align:start position:0%
\x20
so<00:00:00.320><c> today</c><00:00:00.640><c> we</c>

00:00:02.310 --> 00:00:02.320 align:start position:0%
so today we
\x20

00:00:02.320 --> 00:00:04.630 align:start position:0%
so today we
are<00:00:02.480><c> going</c>

00:00:04.630 --> 00:00:04.640 align:start position:0%
are going
\x20
"""


def test_automatic_captions_of_youtube_keep_each_line_the_same_while_it_moves() -> None:
    assert blocks(YOUTUBE, "vtt") == ["so today we", "so today we", "so today we", "are going", "are going"]
    german = {"so today we": "also heute wir", "are going": "gehen"}
    written = document_with(YOUTUBE, lambda text: german.get(text, text), "vtt")
    assert [re.sub("<[^>]*>", "", line) for line in written.splitlines() if re.search("heute|gehen", line)] == [
        *["also heute wir"] * 3,
        *["gehen"] * 2,
    ]
    assert TIMES.findall(written) == TIMES.findall(YOUTUBE)


ASS = {
    r"First line\NSecond line": ("First line Second line", r"FIRST LINE\NSECOND LINE"),
    r"First line\nsecond line": ("First line second line", r"FIRST LINE\nSECOND LINE"),
    r"- Who?\N- Me.": ("Who?|Me.", r"- WHO?\N- ME."),
    r"I went\hhome": ("I went home", r"I WENT\hHOME"),
    r"\h\hI went\N\hhome": ("I went home", r"\h\hI WENT\N\hHOME"),
    r"{\an8}\hI went": ("I went", r"{\an8}\hI WENT"),
    r"guard: in C:\News": (r"in C:\News", None),
}


@pytest.mark.parametrize(("text", "expected"), ASS.items(), ids=ASS)
def test_line_breaks_and_hard_spaces_of_ass_stay(text: str, expected: tuple[str, str | None]) -> None:
    text = text.removeprefix("guard: ")
    for document, format in zip(cues(text), FORMATS, strict=True):
        assert "|".join(blocks(document, format)) == expected[0]
        assert expected[1] is None or document_with(document, str.upper, format) == document.replace(text, expected[1])


def test_a_block_without_punctuation_is_bounded() -> None:
    assert [len(each.split()) for each in blocks(row(*(f"word{index}" for index in range(30))))] == [
        MAX_CUES,
        MAX_CUES,
        30 - 2 * MAX_CUES,
    ]


def test_lines_of_blocks_are_those_of_the_document() -> None:
    text = row("I went\nhome.", "- Yes.\n- [noise]\nNo.")
    found = [(part.line, part.text) for part in parts(text) if isinstance(part, Block)]
    rows = text.split("\n")
    assert all(each.split()[0] in rows[line - 1] for line, each in found) and len(found) == 4


@pytest.mark.parametrize(
    ("document", "model", "expected"),
    [
        (
            row("<i>I went with my</i>", "<i>old friend.</i>"),
            lambda text: "Ich ging mit meinem alten Freund.",
            row("<i>Ich ging mit meinem</i>", "<i>alten Freund.</i>"),
        ),
        (
            row("I went <b>home</b>", "with him\nand her."),
            lambda text: {"home": "Casa"}.get(text, "Fui a casa."),
            row("Fui", "a\n<b>casa</b>."),
        ),
        (
            row("I <i>went</i>", "home with my friends."),
            lambda text: {"went": "bin nach Hause"}.get(text, "Ich bin nach Hause gegangen."),
            row("Ich <i>bin nach Hause</i>", "gegangen."),
        ),
        (
            row("He sat there all day long. I\nwent home."),
            lambda text: {"I went home.": "Ich bin nach Hause gegangen."}.get(text, text),
            row("He sat there all day long. Ich\nbin nach Hause gegangen."),
        ),
        (row("他<i>走了</i>\n<b>然后</b>来a"), str.upper, row("他<i>走了</i>\n<b>然后</b>来A")),
        (row("I went", "home", "late."), lambda text: "Vado.", row("Vado.", "", "")),
        (row("Hello", "my dear", "friend! 42", "43"), lambda text: "Hi!", row("Hi!", "", "42", "43")),
        (row("<i>I went</i>", "<i>home</i>", "late"), lambda text: "Vado", row("<i>Vado</i>", "<i></i>", "")),
        (
            row("One sentence. Another", "one. A third."),
            str.upper,
            row("ONE SENTENCE. ANOTHER", "ONE. A THIRD."),
        ),
        (
            VTT + "00:00.000 --> 00:01.000\nI &amp; you &lt;3\n",
            lambda text: "you & I & < &lt; -->",
            VTT + "00:00.000 --> 00:01.000\nyou &amp; I &amp; &lt; &amp;lt; --&gt;\n",
        ),
    ],
)
def test_an_output_is_laid_over_the_cues(document: str, model: Callable[[str], str], expected: str) -> None:
    assert document_with(document, model, "vtt" if document.startswith("WEBVTT") else "srt") == expected


@needs_subpackage("speech")
@pytest.mark.parametrize("format", FORMATS)
def test_a_transcript_keeps_its_segments(format: str) -> None:
    from speculative_decoding.speech import formats
    from speculative_decoding.speech.draft_texts import cues_of
    from speculative_decoding.speech.segments import Segment

    texts = [
        " And so my fellow Americans",
        " ask not what your country can do for you,",
        " ask what you can do for it.",
    ]
    segments = [Segment(n, 0, 2.0 * n, 2.0 * n + 2, text, [], 0, 0, 0, 0) for n, text in enumerate(texts)]
    text = "".join(formats.STREAMED[format](segments, formats.NO_OPTIONS))
    assert blocks(text, format) == ["".join(texts).strip()]
    written = document_with(text, lambda text: " ".join(word + word[-1] for word in text.split()), format)
    assert [cue[1:] for cue in cues_of(written)] == [cue[1:] for cue in cues_of(text)]
    assert max(map(len, written.splitlines())) <= max(map(len, text.splitlines()))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "content",
    [
        *("a" * 100_000, "word " * 20_000, " " * 100_000 + "a", "- " * 50_000, "A: " * 30_000, "♪ " * 50_000),
        *("<i>" * 50_000, "<i>a</i>\n" * 10_000, "</i>" * 50_000, "<i>" * 9999 + "a\n" + "</i>" * 9999),
        *("<" * 100_000, "[" * 100_000, "[\n" * 20_000, "{\\" * 50_000, "&" * 100_000, "(" * 100_000),
    ],
    ids=lambda text: repr(text[:8]),
)
def test_hostile_texts_are_divided_in_linear_time(content: str, format: str) -> None:
    text = "WEBVTT\n\n" * (format == "vtt") + f"00:00:01.000 --> 00:00:02.000\n{content}\n"
    assert "".join(part.raw for part in parts(text, format)) == text
