"""Markdown documents keep everything but the text of their paragraphs, headings and cells."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from speculative_decoding.documents.markdown_inline import Inline
from speculative_decoding.documents.markdown_writing import writer
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.tokens import Block, Break, Close, Kept, Literal, Open, Part, Point, Text, Token

from .decoders import document_with

FOLDER = Path(__file__).parents[2]
FILES = [FOLDER / "README.md", FOLDER / "CHANGELOG.md", *sorted((FOLDER / "docs").glob("*.md"))]
EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True)
ORACLE = MarkdownIt("commonmark", {"maxNesting": 100}).enable(["table", "strikethrough"])

INLINE = ["a", "Bc", " ", "  ", ".", "*", "**", "_", "__", "~~", "`", "``", "[", "]", "](u)", '](u "t")', "][r]", "![", "!"]
INLINE += ["<b>", "</b>", "<i>", "</i>", "<br>", "<img/>", "<x@y.z>", "<a:b>", "&amp;", "&", "\\", "|", "\\|", "(", "<", "中"]
STARTS = ["", "", "", "> ", ">", "- ", "* ", "12. ", "1) ", "  ", "    ", "\t", "# ", "## ", "```", "~~~", "|", "<div>"]
LINES = ["", "", "---", "===", "|-|-|", "a|-", "[r]: /u", "[r]:\n/u 'a\nb'", "***", "<!-- a", "-->", "</div>"]
ENDS = ["\n", "\n", "\n", "\r\n", "\r", "  \n", "\\\n", " #\n", "|\n"]
BODIES = st.lists(st.sampled_from(INLINE), max_size=8).map("".join)
TEXTS = st.tuples(st.lists(st.sampled_from(STARTS), max_size=3).map("".join), BODIES).map("".join)
DOCUMENTS = st.lists(st.tuples(TEXTS | st.sampled_from(LINES), st.sampled_from(ENDS)).map("".join), max_size=9).map("".join)


def parts_of(text: str) -> list[Part]:
    return [*parse(StringIO(text, newline=""), DocumentOptions())]


def raw_of(parts: list[Part]) -> str:
    return "".join(part.raw for part in parts)


@EXAMPLES
@given(DOCUMENTS | st.text(max_size=50))
def test_parts_are_the_document(text: str) -> None:
    parts = parts_of(text)
    assert raw_of(parts) == text
    line = 1
    for part in parts:
        assert isinstance(part, Literal) or part.line == line
        line += part.raw.count("\n") + part.raw.count("\r") - part.raw.count("\r\n")


NAMES = {"*": "em", "_": "em", "**": "strong", "__": "strong", "~~": "s", "[": "a"}


def readable(tokens: list[Token | Literal]) -> str:
    """Write tokens as a reader of Markdown understands them."""
    names: dict[int, str] = {}
    written = ""
    for token in tokens:
        if isinstance(token, Open):
            names[token.number] = NAMES.get(token.raw, token.raw)
            written += f"({names[token.number]} "
        elif isinstance(token, Close):
            written += f" {names[token.number]})"
    return written


def inline_of(children: list) -> list[tuple[str, str]]:
    """Return what the oracle finds in an inline text, text joined."""
    found = []
    for child in children:
        if child.type == "html_inline":
            found.append(("html", child.content))
        elif child.markup == "autolink":
            continue
        else:
            found.append((child.type, child.content))
    return found


def own_inline(parts: list[Token | Literal]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    opened: dict[int, str] = {}
    for part in parts:
        if part.raw.startswith("<") and not isinstance(part, (Kept, Text)):
            found.append(("html", part.raw))
        elif isinstance(part, Text):
            if found and found[-1][0] == "text":
                found[-1] = ("text", found[-1][1] + part.text)
            else:
                found.append(("text", part.text))
        elif isinstance(part, Kept):
            found.append(("code_inline" if part.raw.startswith("`") else "text", part.text))
        elif isinstance(part, Point):
            found.append(("image", part.raw))
        elif isinstance(part, Open):
            opened[part.number] = NAMES[part.raw]
            found.append((NAMES[part.raw] + "_open", ""))
        elif isinstance(part, Close):
            found.append((opened[part.number] + "_close", ""))
        else:
            found.append(("softbreak" if isinstance(part, Break) else "hardbreak", ""))
    return found
