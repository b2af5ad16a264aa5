"""Markdown documents keep everything but the text of their paragraphs, headings and cells."""

from __future__ import annotations

import random
import re
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token as Event

from speculative_decoding.documents.markdown import DEEPEST, Outline, parse
from speculative_decoding.documents.markdown_inline import MAX_MARKS, Inline
from speculative_decoding.documents.markdown_writing import write_start, writer
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.tokens import Block, Break, Close, Kept, Literal, Open, Part, Point, Text, Token
from speculative_decoding.errors import InputError

from .decoders import document_with

FOLDER = Path(__file__).parents[2]
FILES = [FOLDER / "README.md", *sorted((FOLDER / "docs").glob("*.md"))]
EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True)
ORACLE = MarkdownIt("commonmark", {"maxNesting": 100}).enable(["table", "strikethrough"])

INLINE = ["a", "Bc", "word", "Some", "text.", " b", " ", "  ", "*", "**", "_", "__", "~~", "`", "``", "[", "]", "](u)", '](u "t")']
INLINE += ["][r]", "![", "!", "<b>", "</b>", "<i>", "</i>", "<br>", "<img/>", "<x@y.z>", "<a:b>", "&amp;", "&", "\\", "|", "\\|"]
INLINE += ["(", "<", "中", "1.", "- ", "{#i}"]
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


# What the tokens say, and what markdown-it-py says, in the same words

NAMES = {"*": "em", "_": "em", "**": "strong", "__": "strong", "~~": "s", "[": "link"}
Said = list[tuple[str, str]]


def joined(said: Iterable[tuple[str, str]]) -> Said:
    """Join adjacent texts. How much white space code has is no matter of Markdown."""
    found: Said = []
    for kind, text in said:
        if kind == "text" and found and found[-1][0] == "text":
            found[-1] = kind, found[-1][1] + text
        elif kind != "text" or text:
            found.append((kind, text))
    return [(kind, re.sub(r"\s+", " ", text)) for kind, text in found]


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
        if child.type == "image" or (child.type == "code_inline" and not child.content.strip()):
            yield "point", ""
        elif child.markup != "autolink":
            yield child.type, child.content


@EXAMPLES
@given(DOCUMENTS)
def test_inline_tokens_say_what_markdown_it_says(text: str) -> None:
    outline = Outline(text)
    contents = [
        (content.line, joined(said_by(Inline(content, outline.env).parts))) for content in outline.contents(text)
    ]
    inlines = [event for event in ORACLE.parse(text) if event.type == "inline" and event.content]
    assert contents == [(event.map[0] + 1, joined(said_by_oracle(event.children))) for event in inlines]
