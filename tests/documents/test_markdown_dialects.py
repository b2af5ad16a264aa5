"""Constructs of Markdown's dialects, in markdown_dialects.txt: marks are kept byte for byte, and words are decoded.

The file's «» enclose the words that are decoded. All other characters are kept.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.documents.decoders import document_with
from tests.documents.properties import parts_in, require_properties

SAMPLES = re.split(
    r"^### (.+) ###\n", Path(__file__).with_name("markdown_dialects.txt").read_text(), flags=re.MULTILINE
)
DIALECTS = dict(zip(SAMPLES[1::2], SAMPLES[2::2], strict=True))
WORDS = re.compile("«([^«»]*)»")


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", DIALECTS)
def test_marks_are_kept_and_words_are_decoded(name: str, line_end: str) -> None:
    marked = DIALECTS[name].replace("\n", line_end)
    text = re.sub("[«»]", "", marked)
    require_properties(text, "markdown")
    written = document_with(text, str.upper, "markdown", unit="paragraph")
    assert written == WORDS.sub(lambda words: words[1].upper(), marked)


@pytest.mark.parametrize("name", DIALECTS)
def test_no_mark_is_lost_if_the_output_is_one_word(name: str) -> None:
    marked = DIALECTS[name]
    written = document_with(re.sub("[«»]", "", marked), lambda prompt: "x", "markdown")
    kept = Counter(line.strip(" .,") for each in WORDS.split(marked)[::2] for line in each.splitlines())
    assert {each: written.count(each) for each in kept if written.count(each) < kept[each]} == {}


LINES = [
    *("{% if a %}", "{{ a.b }}", "{{ a }} B c", "{: .a}", "{#a}", "%%", "%% A b %%", "{/* A", "*/}", "{a.b(", ")}"),
    *("<A b={c}>", "  <B>", "  A b", "</A>", '<A title="A b"/>', "<A", "/>", "<p>A b", "</p>", "<div markdown>", "<>"),
    *('import A from "b"', "export const a = {", "}", "[^a]: A b", ": A b", "    A b", "> A b", "> {% a %}", "- A b"),
    *('![A b](c "D e")', 'A ![b c](d "E f") g', '[A b](c "D e"){.f}', '[a]: b "C d"', "[[a|B c]]", "==A b==^[C d]"),
    *(
        "# A b {#c}",
        "| A | [[b\\|C]] |",
        "|-|-|",
        "$$",
        "```",
        "A b",
        "A {~~b~>c~~} {>>d<<} e",
        "",
        "",
        "!!! a",
        "--8<--",
    ),
]


def test_only_letters_of_pieces_change_in_random_lines() -> None:
    choose = random.Random(0)
    for _ in range(300):
        lines = choose.choices(LINES, k=choose.randrange(2, 11))
        require_properties(choose.choice(["\n", "\r\n"]).join(lines), "markdown")


@pytest.mark.parametrize("size", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "unit",
    [
        *(
            "{",
            "{{",
            "{%",
            "{#",
            "{/*",
            "%%",
            "{ ",
            "{:",
            "{a.b ",
            "{ .a",
            "{ a='",
            "{% comment %}",
            "{{a}}\n",
            "{% a %}\n",
        ),
        *("[[", "[[a|", "![[", "==a", "++a", "#a ", "{++", "{~~a~>", "{>>", "^[", "$`", "$a_\n", "\\\\("),
        *(
            "<A ",
            "<A a={",
            "<A a={{{",
            "<A>\n ",
            "<A a='",
            "<a b={c}\n",
            "import {\n",
            "import 'a'\n\n",
            "export {(\n\n\n\n ",
            "{a.b\n",
        ),
        *("[^a]: b\n", ": a\n", "[^a]:\n    ", '![a](b "c', '![a](b "c") ', '[a](b "c") d ', "![![", '[a]: b "c'),
        *("[a]({{ b", "![[a]({% b %}) ", "[a]: {{ b\n", "<p>a\n", "<p>\n\n", "<A>\n<B>\n  c\n\n"),
    ],
)
def test_hostile_documents_are_read_in_linear_time(unit: str, size: int) -> None:
    text = unit * (size // len(unit)) + "a"
    assert "".join(part.raw for part in parts_in(text, "markdown", unit="line")) == text
