"""HTML documents are restored, only their text changes, and their tags are those of a browser's parser."""

from __future__ import annotations

import re
import tracemalloc
from collections import Counter
from io import StringIO
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.documents.html import parse
from speculative_decoding.documents.html_scanner import Scanner
from speculative_decoding.documents.options import DocumentOptions
from speculative_decoding.documents.tokens import Block, Close, Kept, Literal, Open, Part, Point, Text

from .decoders import document_with

HTML = DocumentOptions(format="html")
EXAMPLES = settings(derandomize=True, deadline=None, max_examples=100, database=None)
TAGS = """
<p>|</p>|<b>|</b>|<i class='x>y'>|</i>|<a href="a>b\n">|</a>|<div>|</div>|<table>|<tr>|<td>|</td>|</table>|<ul>|<li>|
</ul>|<br>|<br/>|<img alt='Foo'>|<P CLASS=A>|</P >|<x-y>|</x-y>|<a b=c/>|<a b='c'd>|<a =b>|<a b = c>|<h1>|</h1>|
<option>|<select>|</select>|<noscript>|</noscript>|<!-- Foo <p> -->|<!-->|<!--->|<!-- a --!>|<!doctype html>|</>|
</ foo>|<![CDATA[ a ]]>|<?php Foo ?>|<!x>|<title>|</title>|<script>|</script>|<style>|</style>|<textarea>|</textarea>|
<xmp>|</xmp>|<script |</script|<iframe>|</iframe>|<!--|-->"""
TEXTS = "<|&|&amp;|&notit;|&#65;|&#x41|&copy|&AMP|&amp=|&nbsp;|a|B|Foo bar|\n| |  \n |\r\n|\t|=|'|\"|/|>|</|é|;|#|x"
PARTS = [*TAGS.replace("|\n", "|").strip().split("|"), *TEXTS.split("|")]
SOURCES = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)
# Elements whose content is copied, in documents without errors
COPIED = ["code", "kbd", "samp", "var", "tt", "math", "svg", "pre", "listing", "template"]
COPIED += ["style", "script", "xmp", "textarea", "iframe"]
WORDS = st.sampled_from(["Foo bar", "baz. ", " ", "\n", "&amp;", "<svg><text>Foo</text></svg>", "<code>Foo</code>"])


def element(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    names = st.sampled_from(["p", "b", "div", "span", "kbd", "pre", "template", "div translate=no", "x-y translate=no"])
    content = st.lists(children, max_size=4).map("".join)
    return st.builds(lambda name, inner: f"<{name}>{inner}</{name.split()[0]}>", names, content)


def parts_of(source: str) -> list[Part]:
    return list(parse(StringIO(source, newline=""), HTML))


def blocks_of(source: str) -> list[Block]:
    return [part for part in parts_of(source) if isinstance(part, Block)]


def texts_of(source: str) -> list[str]:
    return [block.text for block in blocks_of(source)]


def swapped(source: str) -> str:
    """Return the document with the case of the letters in its texts swapped."""
    return "".join(
        part.raw
        if isinstance(part, Literal)
        else "".join(part.write(each.text.swapcase()) if isinstance(each, Text) else each.raw for each in part.tokens)
        for part in parts_of(source)
    )


def tree(source: str, swap: bool = False) -> list[tuple[Any, ...]]:
    """Return the tree of lexbor. swap: whether to swap the case of texts outside of copied elements."""
    parser = pytest.importorskip("selectolax.lexbor").LexborHTMLParser(source)
    found: list[tuple[Any, ...]] = []
    waiting = [(parser.root, 0, False)]
    while waiting:
        node, depth, is_copied = waiting.pop()
        if node.is_text_node:
            text = node.text_content
            found.append((depth, text if is_copied or not swap else text.swapcase()))
        elif not node.is_element_node:
            found.append((depth, node.comment_content if node.is_comment_node else node.html))
        else:
            attributes = node.attributes
            found.append((depth, node.tag, attributes))
            is_copied |= node.tag in COPIED or attributes.get("translate") == "no"
            children = []
            child = node.first_child
            while child is not None:
                children.append((child, depth + 1, is_copied))
                child = child.next
            waiting += children[::-1]
    return found


@EXAMPLES
@given(st.one_of(SOURCES, st.text(alphabet="<>&/!-a'\"= \n\r;#p", max_size=30)))
def test_parts_join_to_the_document_and_say_their_lines(source: str) -> None:
    before = ""
    for part in parts_of(source):
        if isinstance(part, Block):
            assert part.line == len((before + "x").replace("\r\n", "\n").replace("\r", "\n").split("\n"))
            assert part.raw == part.raw.strip(" \t\n\f\r")
        before += part.raw
    assert before == source


@EXAMPLES
@given(SOURCES)
def test_exactly_the_texts_of_a_browsers_tree_are_swapped(source: str) -> None:
    assert tree(swapped(source)) == tree(source, swap=True)


@EXAMPLES
@given(st.lists(st.recursive(WORDS, element, max_leaves=12), max_size=4).map("".join))
def test_copied_elements_of_a_browsers_tree_are_copied(source: str) -> None:
    assert tree(swapped(source)) == tree(source, swap=True)


DOCUMENTS = {
    "tags that end a paragraph": "<p>One Cat<p>Two <b>Dogs\n<ul><li>Three<li>Four<ul><li>Five</ul></ul>",
    "a table": "<TABLE>\r\n<TR><TD>One Cat<TD ALIGN=left>Two<TR><TH>Three</TABLE>\r\nFour Mice",
    "inline markup": 'The <a href="Foo>">first\nhouse</a> <img alt="Foo"> is <em class=A>very</em> big. He  saw it.',
    "byte-order mark and prolog": '\ufeff<?xml version="1.0"?>\n<!DOCTYPE html>\n<p>One<br/>Two &amp; three</p>',
    "scripts": "<p>One<script>if (a < b) '</p>Foo'</script>Two<style>Foo { }</style><!--[if IE]><p>Foo<![endif]-->",
    "code": "Type <code>Foo &lt;b&gt;</code> and see. <pre>Foo <b>Bar</b></pre> Then <kbd>Ctrl</kbd> it.",
    "lone characters": "If a < b & c > d, then AT&T; wins &notit &copy 2020.",
    "a title": "<title>One &amp; Two\nthree</title><body>Four",
    "unknown elements": "The <x-y>big</x-y> house <wbr>was</i> seen.",
}


@pytest.mark.parametrize("source", DOCUMENTS.values(), ids=DOCUMENTS)
def test_identity_gives_the_document_and_swapcase_changes_its_letters_alone(source: str) -> None:
    assert document_with(source, str, "html") == source
    expected = "".join(
        part.raw
        if isinstance(part, Literal)
        else "".join(t.raw.swapcase() if isinstance(t, Text) and t.raw == t.text else t.raw for t in part.tokens)
        for part in parts_of(source)
    )
    assert document_with(source, str.swapcase, "html") == expected != source


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("<p>One <b>two</b><br>three<hr>four<td>five", ["One two", "three", "four", "five"]),
        ("one<button>two</button><option>three<h1>four</h1>five", ["one", "two", "three", "four", "five"]),
        ("日本\n語と\n <b>\nx </b>\ny", ["日本語と x y"]),
        ("a&nbsp;b&#10;c&lt;d&#0;&#1;&unknown;&notit;&#" + "9" * 5000, ["a\xa0b c<d\ufffd&unknown;¬it;\ufffd"]),
        ("<p translate=no>a<p>b <i class='x notranslate'>c  d</i> e", ["b c d e"]),
        ("<div translate=no>a<p translate=YES>b<p>c<i translate=yes>d</i>e</div>f", ["b", "d", "f"]),
        ("<ul><li translate=no>a<ul><li>b</ul><li>c</ul><table translate=no><tr><td>d<td>e</table>f", ["c", "f"]),
        ("<p>a <code>b<p>c <code>d<br>e</code> f", ["a b", "c d e f"]),
        ("<div>a<code>b<div>c</div></p>d</code>e</div>f<code>g</div>h", ["ab c de", "fg", "h"]),
        ("a <svg><title>b<b></title><style>p</style></svg>c <math><mi>x</mi></math> d", ["a c x d"]),
        ("<svg><p>a<svg><foreignObject><p>b</p></foreignObject></svg>c", ["ac"]),
        ("a<template><td>b<template>c</template>d</p></template>e", ["a", "e"]),
        ("<script><!--<script>a</script>b--></script>c<script>d</script>e<plaintext>f</plaintext>g", ["c", "e"]),
        ('<?xml version="1.0"?><script/>a<title/>b<code/>c<![CDATA[ > d]]>', ["a", "bc"]),
        ("<code>a</code><td>&nbsp;<td><!-- b --><img>", []),
    ],
)
def test_texts_are_those_of_blocks(source: str, texts: list[str]) -> None:
    assert texts_of(source) == texts


def test_inline_elements_are_markup_and_those_without_text_are_points() -> None:
    (block,) = blocks_of(
        "a <A HREF='x'>b</A> <a name=y></a><span> </span>c<wbr>d<!-- e --> <b>f <i>g</b></i> </u><code>h</code>"
    )
    kinds = [(type(token), token.raw) for token in block.tokens if not isinstance(token, Text)]
    assert kinds[:2] == [(Open, "<A HREF='x'>"), (Close, "</A>")]
    assert [raw for kind, raw in kinds if kind is Point] == [
        "<a name=y>",
        "</a>",
        "<span>",
        "</span>",
        "<wbr>",
        "<!-- e -->",
    ]
    assert kinds[-6:] == [
        (Open, "<b>"),
        (Open, "<i>"),
        (Close, "</b>"),
        (Close, "</i>"),
        (Close, "</u>"),
        (Kept, "<code>h</code>"),
    ]
    link, bold, italic = (token for token in block.tokens if isinstance(token, Open))
    assert [link.is_link, bold.is_link] == [True, False]
    closed = [token.number for token in block.tokens if isinstance(token, Close)]
    assert closed[:3] == [link.number, bold.number, italic.number]


INLINE = st.sampled_from(
    [
        "words here",
        "{name}",
        "(",
        ".",
        "<code>x()</code>",
        "<a href='#f'>[1]</a>",
        "<a href='u'>the page</a>",
        "<a href='v'>see {x} there</a>",
        "<a href='w'><code>y</code></a>",
        "<b>see {x} there</b>",
        "<b>bold words</b>",
        "<b>the end. And the next</b>",
        "<a href='z'>the first one. The second</a>",
    ]
)


@EXAMPLES
@given(st.lists(INLINE, max_size=6), st.randoms(use_true_random=False))
def test_links_and_code_survive_and_markup_stays_in_pairs_whatever_a_model_does(
    items: list[str], random: Random
) -> None:
    def model(text: str) -> str:
        return " ".join(random.choices(text.split(), k=random.randint(1, 3))).title()

    source = f"<p>The {' '.join(items)}</p>"
    written = document_with(source, model, "html")
    kept = re.compile(r"<code>.*?</code>|</?a|href='.*?'|\{\w+\}")
    assert Counter(kept.findall(written)) >= Counter(kept.findall(source))
    assert written.count("<b>") == written.count("</b>") and written.count("<a ") == written.count("</a>")


def test_outputs_are_escaped() -> None:
    assert document_with("<p>x</p>", lambda _: "a<b & c>\xa0d", "html") == "<p>a&lt;b &amp; c&gt;&nbsp;d</p>"
    assert document_with("<?xml ?><p>x", lambda _: "<\xa0>", "html") == "<?xml ?><p>&lt;&#160;&gt;"


HOSTILE = [
    "<b>",
    "<div>",
    "<code>",
    "<p><code>",
    "<svg><p>",
    "<template>",
    "<div translate=no><p translate=yes>",
    "</b>",
    "<",
]
HOSTILE += [
    "<!--",
    "<script><!--<script>",
    "<title>",
    "<a ",
    "<a b='",
    "&#9",
    "&a",
    "a\n",
    " ",
    "<ul translate=no><li>",
]


@pytest.mark.parametrize("repeated", HOSTILE)
def test_each_character_is_read_a_few_times(repeated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hostile documents take linear time, without recursion."""
    source = repeated * (100_000 if repeated in ("<b>", "<div>") else 5000)
    read = 0

    def counted(self: Scanner, start: int, within: str = "") -> Any:
        nonlocal read
        token = original(self, start, within)
        read += token.content - start if token.type == "tag" else token.end - start
        return token

    original = Scanner.read
    monkeypatch.setattr(Scanner, "read", counted)
    assert "".join(part.raw for part in parts_of(source)) == source
    assert read <= 3 * len(source)


@pytest.mark.parametrize("repeated", ["<p>The quick <b>brown</b> fox &amp; the dog.\n", "<b>x</b> ", "ab\n"])
@pytest.mark.slow
def test_memory_of_a_long_document_is_at_most_six_times_its_size(repeated: str) -> None:
    source = repeated * (1_500_000 // len(repeated))
    lines = StringIO(source, newline="")
    tracemalloc.start()
    try:
        assert sum(len(part.raw) for part in parse(lines, HTML)) == len(source)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(source)
    finally:
        tracemalloc.stop()
