"""In Markdown documents, only the text of paragraphs, headings and cells changes."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token as Event

from speculative_decoding.documents.findings import ANCHOR, COPIED, Finding
from speculative_decoding.documents.markdown import MAX_DEPTH, Outline, parse
from speculative_decoding.documents.markdown_inline import HTML, MAX_MARKS, PLAIN, Inline
from speculative_decoding.documents.markdown_writing import write_start, writer
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.tokens import Block, Break, Close, Kept, Literal, Open, Part, Point, Text, Token
from speculative_decoding.errors import InputError

from .decoders import document_with

FOLDER = Path(__file__).parents[2]
FILES = [FOLDER / "README.md", *sorted((FOLDER / "docs").glob("*.md"))]
EXAMPLES = settings(max_examples=100, deadline=None, derandomize=True)
ORACLE = MarkdownIt("commonmark", {"maxNesting": 100}).enable(["table", "strikethrough"])

INLINE = [
    "a",
    "Bc",
    "word",
    "Some",
    "text.",
    " b",
    " ",
    "  ",
    "*",
    "**",
    "_",
    "__",
    "~~",
    "`",
    "``",
    "[",
    "]",
    "](u)",
    '](u "t")',
]
INLINE += [
    "][r]",
    "![",
    "!",
    "<b>",
    "</b>",
    "<i>",
    "</i>",
    "<br>",
    "<img/>",
    "<x@y.z>",
    "<a:b>",
    "&amp;",
    "&",
    "\\",
    "|",
    "\\|",
]
INLINE += ["(", "<", "中", "1.", "- "]
STARTS = ["", "", "", "> ", ">", "- ", "* ", "12. ", "1) ", "  ", "    ", "\t", "# ", "## ", "```", "~~~", "|", "<div>"]
LINES = ["", "", "---", "===", "|-|-|", "a|-", "[r]: /u", "[r]:\n/u 'a\nb'", "***", "<!-- a", "-->", "</div>"]
ENDS = ["\n", "\n", "\n", "\r\n", "\r", "  \n", "\\\n", " #\n", "|\n", ""]
BODIES = st.lists(st.sampled_from(INLINE), max_size=8).map("".join)
MARKED = st.tuples(st.lists(st.sampled_from(STARTS), max_size=3).map("".join), BODIES).map("".join)
LINE = st.tuples(MARKED | st.sampled_from(LINES), st.sampled_from(ENDS)).map("".join)
DOCUMENTS = st.lists(LINE, max_size=9).map(lambda lines: "\n" + "".join(lines))


def parts_of(text: str) -> list[Part]:
    return [*parse(StringIO(text, newline=""), DocumentOptions())]


def line_ends(text: str) -> int:
    return len(re.findall(r"\r\n?|\n", text))


@EXAMPLES
@given(DOCUMENTS | st.text(max_size=50))
def test_parts_are_the_document_and_know_their_lines(text: str) -> None:
    raw = ""
    for part in parts_of(text):
        assert isinstance(part, Literal) or part.line == 1 + line_ends(raw)
        raw += part.raw
    assert raw == text


# Our tokens and the events of markdown-it-py, in the same notation

NAMES = {"*": "em", "_": "em", "**": "strong", "__": "strong", "~~": "s", "[": "link", "![": "image"}
Said = list[tuple[str, str]]


def joined(said: Iterable[tuple[str, str]]) -> Said:
    """Join adjacent texts. The amount of white space in code is ignored."""
    found: Said = []
    for kind, text in said:
        if kind == "text" and found and found[-1][0] == "text":
            found[-1] = kind, found[-1][1] + text
        elif kind != "text" or text:
            found.append((kind, text))
    return [(kind, text if kind == "text" else "".join(text.split())) for kind, text in found]


def said_by(parts: Iterable[Literal | Token]) -> Iterator[tuple[str, str]]:
    names: dict[int, str] = {}
    for part in parts:
        match part:
            case Text():
                yield "text", part.text
            case Kept():
                yield "code_inline" if part.raw[0] == "`" else "text", part.text
            case Point() | Literal() | Open() | Close() if part.raw[0] == "<":
                yield "html_inline", part.raw
            case Point():
                yield ("text", part.raw) if part.raw.isspace() else ("point", "")
            case Literal():
                yield "hardbreak", ""
            case Break():
                yield "softbreak", ""
            case Open():
                names[part.number] = NAMES[part.raw]
                yield f"{NAMES[part.raw]}_open", ""
            case Close():
                yield f"{names[part.number]}_close", ""


def said_by_oracle(children: Iterable[Event]) -> Iterator[tuple[str, str]]:
    for child in children:
        if child.type == "image":
            yield from [("image_open", ""), *said_by_oracle(child.children or []), ("image_close", "")]
        elif child.type == "code_inline" and not child.content.strip():
            yield "point", ""
        elif child.markup != "autolink":
            yield child.type, child.content


@EXAMPLES
@given(DOCUMENTS)
def test_inline_tokens_say_what_markdown_it_says(text: str) -> None:
    assume(not any(mark in text for mark in ("[ ] ", "[[")))  # the checkbox of a task, and the link of a wiki
    outline = Outline(text)
    contents = [
        (content.line, joined(said_by(Inline(content, outline.env).parts)))
        for content in outline.contents(text)
        if content.type not in (PLAIN, HTML)
    ]
    inlines = [event for event in ORACLE.parse(text) if event.type == "inline" and event.content]
    assert contents == [(event.map[0] + 1, joined(said_by_oracle(event.children))) for event in inlines]


def structure_of(text: str) -> list[object]:
    """Return the blocks that markdown-it-py finds, with their lines and code, and the inline markup of each."""
    found: list[object] = []
    for event in ORACLE.parse(text):
        content: object = "" if event.type == "inline" else event.content
        if event.type == "html_block":
            content = re.findall("<[^>]*>", event.content)
        found.append((event.type, event.map, event.info, event.markup, content))
        found += [
            (each.type, each.attrs | {"title": ""}, "" if each.type == "image" else each.content)
            for each in event.children or []
            if each.type != "text"
        ]
    return found


def check_structure(text: str) -> None:
    assert document_with(text, str, "markdown") == text
    swapped = document_with(text, str.swapcase, "markdown")
    assert len(swapped) == len(text)
    assert all(one in (other, other.swapcase()) for one, other in zip(swapped, text, strict=True))
    assert structure_of(swapped) == structure_of(text)


@EXAMPLES
@given(DOCUMENTS)
def test_only_letters_of_text_change(text: str) -> None:
    check_structure(text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_real_documents_keep_their_structure(path: Path) -> None:
    check_structure(path.read_text())


CASES = {
    "paragraphs": ("one.\n\ntwo,\nthree\n", "ONE.\n\nTWO,\nTHREE\n"),
    "headings": ("# one #\n\ntwo\n===\n\n### c {#id .k}\n## d\n", "# ONE #\n\nTWO\n===\n\n### C {#id .k}\n## D\n"),
    "lists": ("- one\n  two\n\n  1. three\n     - [ ] four\n", "- ONE\n  TWO\n\n  1. THREE\n     - [ ] FOUR\n"),
    "quotes": ("> one\n> > two\n> > three\nfour\n", "> ONE\n> > TWO\n> > THREE\nFOUR\n"),
    "list in quote": (">- one\n>\n>  two\n> three\n", ">- ONE\n>\n>  TWO\n> THREE\n"),
    "line ends": ("one\r\ntwo\r\n\r\n-\tthree\rfour", "ONE\r\nTWO\r\n\r\n-\tTHREE\rFOUR"),
    "hard breaks": ("one  \ntwo\\\n  three<br>four", "ONE  \nTWO\\\n  THREE<br>FOUR"),
    "code": ("one\n```sh\nx\n```\n\n    y\n\n`z` two ``a`b``\n", "ONE\n```sh\nx\n```\n\n    y\n\n`z` TWO ``a`b``\n"),
    "table": (
        "| one | `x\\|y` |\n|:--|--:|\n| a\\|b | two | more\n three\n",
        "| ONE | `x\\|y` |\n|:--|--:|\n| A\\|B | TWO | more\n THREE\n",
    ),
    "links": (
        '[one](u "t") [two][r] ![x](y) <https://u.v>\n\n[r]: w\n',
        '[ONE](u "t") [TWO][r] ![X](y) <https://u.v>\n\n[r]: w\n',
    ),
    "links by their text": (
        "see [one] and [Two][] now.\n\n[one]: u\n[two]: v\n",
        "SEE [one] AND [Two][] NOW.\n\n[one]: u\n[two]: v\n",
    ),
    "emphasis": ("one *two **three*** ~~four~~ a_b\n", "ONE *TWO **THREE*** ~~FOUR~~ a_b\n"),
    "escapes": ("one \\* two &amp; three &lt;\n", "ONE \\* TWO &amp; THREE &lt;\n"),
    "HTML": (
        "<div>\nx\n</div>\n\none <b class='x'>two</b> <kbd>Ctrl</kbd> <!-- y --> three\n",
        "<div>\nX\n</div>\n\nONE <b class='x'>TWO</b> <kbd>Ctrl</kbd> <!-- y --> THREE\n",
    ),
    "untranslated": ('one <span translate="no">x</span>\n', 'ONE <span translate="no">x</span>\n'),
    "front matter": ("---\ntitle: x\n---\none\n---\ntwo\n", "---\ntitle: x\n---\nONE\n---\nTWO\n"),
    "a rule": ("---\n\none\n\n---\n", "---\n\nONE\n\n---\n"),
    "footnotes": ("one[^x] two.\n\n[^x]: three\n    four\n", "ONE[^x] TWO.\n\n[^x]: THREE\n    FOUR\n"),
    "definitions": ("one\n: two\n  three\n", "ONE\n: TWO\n  THREE\n"),
    "containers": ("::: note\none\n:::\n", "::: note\nONE\n:::\n"),
    "alerts": ("> [!NOTE]\n> one\n", "> [!NOTE]\n> ONE\n"),
    "a text that looks like a list": ("one\n      - two\n", "ONE\n      - TWO\n"),
    "an image at a line end": ("one ![](y)\ntwo\n![x](y)\nthree\n", "ONE ![](y)\nTWO\n![X](y)\nTHREE\n"),
    "no spaces": ("中a\n中b\n", "中A\n中B\n"),
}


@pytest.mark.parametrize(("text", "swapped"), CASES.values(), ids=CASES)
def test_text_is_decoded_and_all_else_is_copied(text: str, swapped: str) -> None:
    assert document_with(text, str, "markdown") == text
    assert document_with(text, str.swapcase, "markdown") == swapped


MARKERS = [
    ("- [ ] one [x] two", ["one [x] two"]),
    ("[^x]: one two", ["one two"]),
    ("> [!NOTE]\n> one", ["one"]),
    ("one\n:   two", ["one", "two"]),
    ("::: note\n:::: tip\none\n::::\n:::", ["one"]),
    ("# one {#two}", ["one"]),
    ("one&nbsp;two <b>three", ["one\u00a0two three"]),
    ("one ![](x)\nthree", ["one three"]),
    ("one ![two](x)\nthree", ["one two three"]),
    ("![one](x) two ![three.png](x) four", ["one", "two four"]),
    ('one\n![two](x "three")\nfour', ["one", "two", "three", "four"]),
]


@pytest.mark.parametrize(("text", "expected"), MARKERS)
def test_markers_are_no_text(text: str, expected: list[str]) -> None:
    assert [part.text.strip() for part in parts_of(text) if isinstance(part, Block)] == expected


@pytest.mark.parametrize(
    ("heading", "anchors"),
    [
        ("# Open the *page*, now!", ["open-the-page-now", "open-the-page-now-1"]),
        ("# See [the `page`](u) & more", ["see-the-page--more"]),
        ("Seite für alle\n===", ["seite-f%C3%BCr-alle"]),
        ("# Open the page {#open}", []),
        ("# `open()`", []),
    ],
)
def test_links_to_headings_that_are_decoded_are_findings(heading: str, anchors: list[str]) -> None:
    wanted = [f"#{anchor}" for anchor in anchors]
    links = [f"[a]({anchor}) <a href='{anchor}'>b</a>" for anchor in [*wanted, "#open", "#other"]]
    parts = parts_of("\n\n".join([*links, heading]))
    findings = [part.finding for part in parts if isinstance(part, Literal) and part.finding]
    assert findings == [Finding(1 + 2 * i, ANCHOR, each) for i, each in enumerate(wanted) for _ in range(2)]


def test_titles_within_sentences_are_copied_with_findings() -> None:
    parts = parts_of('one\ntwo [three](u "Four five") six\n')
    assert [part.finding for part in parts if isinstance(part, Literal)][:1] == [Finding(1, COPIED, "Four five")]
    assert sum(isinstance(part, Block) for part in parts) == 1


SOURCES = [CASES[name][0] for name in ("paragraphs", "headings", "lists", "list in quote", "table", "links", "HTML")]
OUTPUTS = st.lists(st.sampled_from([*INLINE, *STARTS, *LINES[2:], "2019. ", "[x]: y"]), max_size=6).map("".join)


@EXAMPLES
@given(st.sampled_from(SOURCES), st.lists(OUTPUTS, min_size=1, max_size=9))
def test_no_output_adds_markup(source: str, outputs: list[str]) -> None:
    rest = iter(outputs)
    written = document_with(source, lambda prompt: next(rest, "word") + "x", "markdown")
    events, before = ORACLE.parse(written), ORACLE.parse(source)
    assert [(event.type, event.tag) for event in events] == [(event.type, event.tag) for event in before]
    kinds, kinds_before = (
        Counter(
            child.type for event in each for child in event.children or [] if child.type not in ("text", "softbreak")
        )
        for each in (events, before)
    )
    assert kinds <= kinds_before


@pytest.mark.parametrize("text", ["2 * 3", "a_b", "R&D", "a < b", "C#", "1.5", "-5", "a ~ b", "a\\b", "50 %!", "x | y"])
def test_plain_characters_are_written_as_they_are(text: str) -> None:
    assert write_start(writer(in_cell=False, before_link=False)(text)) == text


HOSTILE = [
    "> ",
    ">",
    "- ",
    "[",
    "![",
    "*",
    "*a ",
    "_*",
    "`[",
    "<b>",
    "<code>",
    "a <!--",
    "<a b='",
    "|",
    "|a\n|-\n",
    "[^",
    ":::\n",
]
HOSTILE += ["a\n", "\\", "&", "[a](", "[a]: b 'c\n", "a"]


@pytest.mark.parametrize("size", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_documents_are_read_in_linear_time(unit: str, size: int) -> None:
    text = unit * (size // len(unit)) + " a--->]"
    assert "".join(part.raw for part in parts_of(text)) == text


def test_lists_deeper_than_the_limit_are_copied_and_what_follows_is_decoded() -> None:
    deep = "".join("  " * level + "- a\n" for level in range(MAX_DEPTH))
    parts = parts_of(f"{deep}\nb\n")
    assert sum(isinstance(part, Block) for part in parts) == MAX_DEPTH // 2
    assert parts[-2].raw == "b"


def test_a_paragraph_with_too_much_markup_is_refused() -> None:
    with pytest.raises(InputError, match=r"^line 3: a paragraph has more than .* divide it, or set format to text$"):
        parts_of("a\n\nb" + "*" * (MAX_MARKS + 1))


@pytest.mark.slow
def test_memory_is_at_most_twelve_times_the_document() -> None:
    pages = [path.read_text() for path in FILES]
    text = "\n".join(random.Random(0).choices(pages, k=10_000_000 * len(pages) // sum(map(len, pages))))
    tracemalloc.start()
    try:
        for _ in parse(StringIO(text, newline=""), DocumentOptions()):
            pass
        assert tracemalloc.get_traced_memory()[1] < 12 * len(text)
    finally:
        tracemalloc.stop()
