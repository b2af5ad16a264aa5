"""Admonitions, tabs, callouts and formulas of Markdown's dialects keep their syntax and their indentation."""

from __future__ import annotations

import random
import re

import pytest

from speculative_decoding.documents.pieces import Piece
from tests.documents.decoders import document_with
from tests.documents.properties import parts_in, require_properties

# Documents with «» around exactly those texts that the program displays
TITLES = {
    "MkDocs: a title": '!!! note "«Be careful»"\n    «The value is returned.»\n',
    "MkDocs: no title": "!!! warning\n    «This is deprecated.\n    It goes.»\n",
    "MkDocs: an empty title": '!!! note ""\n    «No title.»\n',
    "MkDocs: classes": '!!! danger inline end "«Be *careful*»"\n    «Stop.»\n',
    "MkDocs: details": '??? tip\n    «The tip is here.»\n\n???+ note "«It is open»"\n    «Yes.»\n',
    "MkDocs: details with a title only": '??? "«Only this»"\n    «No.»\n',
    "MkDocs: a blank line": "??? tip\n\n    «The tip is here.»\n\n    «It has two paragraphs.»\n\n«After it.»\n",
    "MkDocs: no blank line after it": "!!! note\n    «The value\n    is here.»\n«After it.»\n",
    "MkDocs: after a paragraph": '«Some text.»\n!!! note "«Title here»"\n    «The value.»\n',
    "MkDocs: nested": '!!! note "«The outer»"\n    !!! tip "«The inner»"\n        «The deep text.»\n\n    «The end.»\n',
    "MkDocs: a list": "!!! note\n    - «An item\n      of two lines»\n    - «Other»\n\n    ```\n    code\n    ```\n",
    "MkDocs: code": "!!! note\n    «Call it so:»\n\n        code = here\n",
    "MkDocs: in a list": '- «Item»\n\n    !!! note "«In the item»"\n        «The text.»\n',
    "MkDocs: tabs": '=== "«On this system»"\n    «Run the program.»\n\n===! "«The other»"\n\n    «Stop it.»\n',
    "MkDocs: quotes within": '!!! note "«Say "yes" now»"\n    «Do it.»\n',
    "PyMdown blocks": "/// note | «The title»\n«Some content.»\n///\n",
    "Docusaurus": ":::note[«The **title**»]{#id}\n\n«Some text.»\n\n:::\n",
    "Docusaurus 2": ":::tip «My tip»\n«Some text.»\n:::\n",
    "VitePress": "::: details «Click me» {open}\n«Some text.»\n:::\n",
    "guard: Pandoc": '::: {.callout-note title="x"}\n«Some text.»\n:::\n\n:::: warning ::::\n«More text.»\n::::\n',
    "MyST": ":::{note} «The title»\n«Some text.»\n:::\n\n:::{figure} picture\n:::\n",
    "Obsidian": "> [!WARNING] «The title»\n> «The content\n> goes on.»\n",
    "Obsidian: folded": "> [!faq]- «Are they folded?»\n> «Yes.»\n>\n> > [!tip]+ «In it»\n> > «Deep.»\n",
    "Obsidian: only a title": "> [!todo] «Do it»\n",
    "DocFX: callouts within a quote": "> «Some text.»\n> [!NOTE]\n> «The note.»\n>\n> [!TIP]\n> «The tip.»\n",
    "guard: GitHub": "> [!NOTE]\n> «Useful information.»\n",
    "guard: emphasis": "!!! «Look here»\n\n??? «is a question»\n\n=== «is one»\n\n/// «is a comment | of it.»\n",
    "guard: code": '    !!! note "x"\n        code\n',
    "guard: a quote without a callout": "> [x] «is a box»\n",
    "guard: callouts outside of a quote": "«[!NOTE] One»\n\n> - «[!NOTE] Two»\n\n> «Three\n[!NOTE] four»\n",
}
FORMULAS = {
    "dollars": "«The value.»\n\n$$\nE = mc^2 \\quad \\text{for the mass } m\n$$\n\n«The end.»\n",
    "dollars in one line": "$$ x = \\text{the value} $$\n",
    "dollars in a paragraph": "«We have»\n$$\nx = \\text{the value}\n$$\n«where it is so.»\n",
    "dollars with a label": "$$\nx = \\text{word}\n$$ (eq:one)\n\n$$ y = \\text{word} $$ {#eq:two}\n",
    "dollars that begin and end within lines": "$$x =\n\\text{the value}\n+ y$$\n",
    "a blank line in dollars": "$$\nx = \\text{one}\n\ny = \\text{two}\n$$\n\n«The end.»\n",
    "text after dollars": "$$\nx = \\text{the value}\n$$ «where it is so.»\n",
    "markup in dollars": "$$\na_1 * b_2 * c_3\n# no heading\n- no list\n$$\n",
    "brackets": "\\[\nx = \\text{the value}\n\\]\n\n«The end.»\n",
    "brackets in one line": "\\[ x = \\text{the value} \\]\n",
    "an environment": "\\begin{align*}\na &= \\text{the value} \\\\\nb &= 2\n\\end{align*}\n\n«The end.»\n",
    "environments within each other": "\\begin{a}\n\\begin{a}\nx y\n\\end{a}\nthe rest\n\\end{a}\n\n«The end.»\n",
    "in a quote": "> «We have»\n>\n> $$\n> x = \\text{the value}\n> $$\n\n«The end.»\n",
    "in a list": "- «An item»\n  $$\n  x = \\text{the value}\n  $$\n- «Another»\n",
    "in an admonition": "!!! note\n    $$\n    x = \\text{the value}\n    $$\n\n    «The end.»\n",
    "CRLF": "$$\r\nx = \\text{the value}\r\n$$\r\n\r\n«The end.»\r\n",
    "guard: math code": "```math\nx = \\text{the value}\n```\n",
    "guard: brackets that are escaped": "«\\[TODO\\] Fix this.»\n\n«\\[ \\] Buy milk»\n\n«\\[ only words here \\]»\n",
    "guard: money": "«It costs $$ a lot.»\n\n«$$ is much.»\n",
}
ALL = TITLES | FORMULAS


@pytest.mark.parametrize("marked", ALL.values(), ids=ALL)
def test_words_are_decoded_and_marks_stay(marked: str) -> None:
    text = re.sub(r"[«»]", "", marked)
    require_properties(text, "markdown")
    decoded = "\0".join(part.raw for part in parts_in(text, "markdown", unit="paragraph") if isinstance(part, Piece))
    assert decoded == "\0".join(re.findall(r"«([^«»]*)»", marked))
    written = document_with(text, str.upper, "markdown", unit="paragraph")
    assert written == re.sub(r"«([^«»]*)»", lambda words: words[1].upper(), marked)


LINES = [
    *('!!! note "A b"', "!!! note", "??? tip", '=== "A b"', ":::note A b", ":::", "/// note | A b", "///"),
    *("> [!NOTE] A b", "[!NOTE] A b", "> $$", "> A b", "$$", "$$ x $$", "A b $$ c", "\\[", "\\]", "\\begin{a}"),
    *("\\end{a}", "A b", "    A b", "        A b", "    $$", "\tA b", "- A b", "", "    ", "```", "# A b"),
    *("| A | b |", "|-|-|"),
]


@pytest.mark.parametrize("first", LINES)
def test_only_letters_of_pieces_change_in_two_lines(first: str) -> None:
    for second in LINES:
        require_properties(f"{first}\n{second}", "markdown")


def test_only_letters_of_pieces_change_in_many_lines() -> None:
    choose = random.Random(0)  # not Hypothesis, whose examples depend on the modules that other tests have loaded
    for _ in range(60):
        lines = choose.choices(LINES, k=choose.randrange(3, 13))
        require_properties(choose.choice(["\n", "\r\n"]).join(lines), "markdown")


@pytest.mark.parametrize(
    "text",
    [
        *('!!! note "a"\n' * 2000, "!!! a\n    b\n" * 2000, "!!! " + "a " * 10_000, '=== "' * 4000),
        *("$$ a\n" * 4001, "\\begin{a}\n" * 4000, "\\[\n" * 4000, "> $$\n\n" * 2000, ":::" * 6000),
        *(
            "".join("    " * (i % 90) + '!!! note "a"\n' for i in range(500)),
            "::: a " + "[" * 10_000,
            "/// a |" * 4000,
        ),
        *("> [!a] b\n" * 2000, "> [!a" * 4000, "$$ a $$ b\n\n" * 2000),
        *(f"{start}{' ' * 50_000}b" for start in ("> [!a] b", "::: a b", "/// a | b", '=== "b"', "$$ a $$", "!!! a")),
        *(
            "::: a" + ":" * 50_000 + "b",
            "::: a b" + ":" * 50_000 + "{",
            '!!! a "' + '" ' * 20_000,
            "::: a" + " {a" * 20_000,
        ),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_texts_take_linear_time(text: str) -> None:
    assert "".join(part.raw for part in parts_in(text, "markdown", unit="line")) == text
