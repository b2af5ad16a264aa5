"""Blocks are divided into pieces without losing a character, and rendered with all of their markup."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.documents import survival
from speculative_decoding.documents.decoding import Rules
from speculative_decoding.documents.findings import Finding
from speculative_decoding.documents.pieces import Piece, divide, pieces_of
from speculative_decoding.documents.tokens import Block, Break, Close, Kept, Literal, Open, Point, Text, Token
from tests.documents.decoders import decode_with, written_with

examples = settings(derandomize=True, deadline=None, max_examples=100)
WORDS = st.sampled_from(["one ", "two", " three", ". ", "four", "? ", "five, ", "ah", " "])


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Tokens of every type, with markup that nests or lacks one of its ends."""
    tokens: list[Token] = []
    opened: list[int] = []
    for number in range(draw(st.integers(1, 25))):
        letter = draw(st.sampled_from("ttttobckpe"))
        if letter == "t":
            text = draw(WORDS)
            tokens.append(Text(text, text))
        elif letter == "o":
            tokens.append(Open(f"<{number}>", number, is_link=draw(st.booleans())))
            opened.append(number)
        elif letter == "c" and (opened or draw(st.booleans())):
            closed = opened.pop() if opened else 1000 + number
            tokens.append(Close(f"</{closed}>", closed))
        elif letter == "b":
            tokens += [Text("begin", "begin"), Break("\n  > "), Text("end", "end")]
        elif letter == "k":
            tokens.append(Kept("kept", "`kept`"))
        elif letter == "p":
            tokens.append(Point("<img>"))
        elif letter == "e":
            tokens.append(Text("&", "&amp;"))
    return Block(tokens, 1, lambda text: text.replace("&", "&amp;"))


def raw_of(parts: list[Piece | Literal]) -> str:
    return "".join(part.raw for part in parts)


@examples
@given(blocks(), st.data())
def test_pieces_and_literals_are_the_block(block: Block, data: st.DataObject) -> None:
    borders = sorted(data.draw(st.sets(st.integers(0, len(block.text)), max_size=6)))
    spans = list(zip(borders[::2], borders[1::2], strict=False))
    parts = list(divide(block, spans))
    assert raw_of(parts) == block.raw
    pieces = [part for part in parts if isinstance(part, Piece)]
    assert len(pieces) == len(spans)
    for piece in pieces:
        closed = {each.number for each in piece.tokens if isinstance(each, Close)}
        assert all(each.number in closed for each in piece.tokens[:1] if isinstance(each, Open))


@examples
@given(blocks())
def test_a_model_that_copies_gives_the_document(block: Block) -> None:
    assert written_with(pieces_of(block, "sentence", "en"), str) == block.raw


@examples
@given(blocks(), st.sampled_from(["sentence", "line", "paragraph"]))
def test_a_model_that_swaps_cases_swaps_all_letters_and_changes_nothing_else(block: Block, unit: str) -> None:
    parts = list(pieces_of(block, unit, "en"))
    written = written_with(parts, str.swapcase)
    swapped = [part for part in parts if isinstance(part, Piece)]
    expected = "".join(
        "".join(t.raw if t.text != t.raw or isinstance(t, Kept | Break) else t.raw.swapcase() for t in part.tokens)
        if part in swapped
        else part.raw
        for part in parts
    )
    assert written == expected


def block_of(*tokens: Token | str) -> Block:
    return Block([Text(each, each) if isinstance(each, str) else each for each in tokens], 1)


BOLD, END, ITALIC, ITALIC_END = Open("<b>", 1), Close("</b>", 1), Open("<i>", 2), Close("</i>", 2)
TRANSLATIONS = {
    "The red house is old.": "Alt ist das rote Haus.",
    "red house": "Rote Haus.",
    "The": "Das",
    "old": "Alt",
}
PLACED = [
    ((("The ", BOLD, "red house", END, " is old."), "Alt ist das <b>rote Haus</b>.")),
    (("The ", BOLD, "red ", ITALIC, "house", ITALIC_END, END, " is old."), "Alt ist das <b>rote Haus</b>."),
    ((BOLD, "The", END, " red house is ", ITALIC, "old", ITALIC_END, "."), "<i>Alt</i> ist <b>das</b> rote Haus."),
    ((BOLD, "The red house is old.", END), "<b>Alt ist das rote Haus.</b>"),
    ((BOLD, "The red house is old."), "<b>Alt ist das rote Haus."),
    (("The red house ", Point("<img>"), "is old."), "Alt ist das rote <img>Haus."),
]


@pytest.mark.parametrize(("tokens", "expected"), PLACED, ids=str)
def test_markup_surrounds_the_output_for_what_it_surrounded(tokens: tuple[Token | str, ...], expected: str) -> None:
    parts = pieces_of(block_of(*tokens), "sentence", "en")
    assert written_with(parts, lambda text: TRANSLATIONS.get(text, text)) == expected


def test_markup_without_a_place_is_dropped_and_named() -> None:
    (piece,) = pieces_of(block_of("The ", BOLD, "red", END, " house is old."), "sentence", "en")
    assert isinstance(piece, Piece)
    decoded = decode_with(piece, lambda text: TRANSLATIONS.get(text, "?"))
    assert written_with([piece], lambda text: TRANSLATIONS.get(text, "?")) == "Alt ist das rote Haus."
    assert [(each.kind, each.what) for each in decoded.findings] == [("markup", "<b> ... </b>")]


def test_nothing_is_listed_if_the_source_is_copied() -> None:
    crossing = [Open("<b>", 1), *block_of("one ").tokens, Open("<i>", 2), *block_of("two").tokens, Close("</b>", 1)]
    (piece,) = pieces_of(Block([*crossing, *block_of(" three").tokens, Close("</i>", 2)], 1), "sentence", "en")
    assert isinstance(piece, Piece)
    assert not decode_with(piece, str).findings and decode_with(piece, str.swapcase).findings


def test_markup_never_crosses_other_markup() -> None:
    tokens = ("A ", BOLD, "red house", END, " and ", ITALIC, "house old", ITALIC_END, ".")
    parts = [*pieces_of(block_of(*tokens), "sentence", "en")]
    outputs = {"A red house and house old.": "Rot Haus alt.", "red house": "Rot Haus", "house old": "Haus alt"}
    assert written_with(parts, outputs.__getitem__) == "<b>Rot Haus</b> alt."


def test_a_piece_that_lost_something_is_decoded_around_it() -> None:
    def model(text: str) -> str:
        return text.upper() if "{name}" not in text else "HELLO NAME"

    (piece,) = pieces_of(block_of("Hello {name}, my friend."), "sentence", "en")
    assert isinstance(piece, Piece)
    decoded = decode_with(piece, model)
    assert decoded.text == "HELLO {name}, MY FRIEND." and [each.kind for each in decoded.findings] == ["parts"]


@pytest.mark.parametrize(("link", "expected"), [("uses eval()", "USES eval()"), ("${home} opens", "${home} OPENS")])
def test_what_must_survive_is_not_divided(link: str, expected: str) -> None:
    tokens = [*block_of("One ").tokens, Open("[", 1, is_link=True), Text(link, link), Close("](u)", 1)]
    (piece,) = pieces_of(Block(tokens, 1), "sentence", "en")
    assert isinstance(piece, Piece)

    def model(text: str) -> str:
        return "Here is eval() or ${home}." if text.startswith("One ") else text.upper()

    assert written_with([piece], model) == f"ONE [{expected}](u)"


@examples
@given(
    st.lists(st.sampled_from(["one", " ", ". ", "two, ", "!"]), min_size=1, max_size=8), st.text("ab ., ", max_size=12)
)
def test_points_keep_their_order_whatever_a_model_does(texts: list[str], output: str) -> None:
    tokens = [each for number, text in enumerate(texts) for each in (Point(f"<{number}>"), Text(text, text))]
    parts = [*pieces_of(block_of("begin ", *tokens, "end"), "paragraph", "en")]
    assert re.findall("<.*?>", written_with(parts, lambda text: output)) == [f"<{i}>" for i in range(len(texts))]


REQUIRED = ("{name}", "%s", "${x}", "--flag", "<0>", "https://a.b/c", "5 km", "a_b", "open()", "two words")


@examples
@given(
    st.lists(st.sampled_from([*REQUIRED, "the file", "and", "(", ")", ","]), max_size=8),
    st.sampled_from(REQUIRED),
    st.sampled_from([str.title, str.upper, lambda text: "x"]),
    st.sampled_from([15, 1000]),
)
def test_everything_that_must_survive_does_whatever_a_model_does(
    items: list[str], dropped: str, model: Callable[[str], str], limit: int
) -> None:
    rules = Rules(lambda text: len(text) <= limit, frozenset(["two words"]))
    text = " ".join(["Open", *items])
    (piece,) = pieces_of(block_of(text), "paragraph", "en")
    assert isinstance(piece, Piece)
    decoded = decode_with(piece, lambda text: text.replace(dropped, "") if dropped in text else model(text), rules)
    assert survival.lost(survival.must_survive(text, rules.terms), decoded.text) == []


def test_a_part_around_something_lost_has_the_rest_of_it_whole() -> None:
    """This includes a kept text at its start, and the space after it."""
    code, path = Kept("--prefix", "`--prefix`"), Kept("/path", "`/path`")
    (piece,) = pieces_of(block_of(code, " is not part of ", path, " either."), "sentence", "en")
    assert written_with([piece], lambda text: text.swapcase().replace("--PREFIX", "--prefix")) == (
        "`--prefix` IS NOT PART OF `/path` EITHER."
    )


def test_terms_are_put_back() -> None:
    (piece,) = pieces_of(block_of("Visit Berlin."), "sentence", "en")
    assert isinstance(piece, Piece)
    decoded = decode_with(piece, lambda text: "Kommt", Rules(terms=frozenset(["Berlin"])))
    assert decoded.text == "Kommt Berlin." and [each.kind for each in decoded.findings] == ["parts"]
    (piece,) = pieces_of(block_of("Berlin."), "sentence", "en")
    assert isinstance(piece, Piece)
    decoded = decode_with(piece, lambda text: "Kommt", Rules(terms=frozenset(["Berlin"])))
    assert decoded.text == "Berlin." and not decoded.findings  # nothing is left to decode


def test_no_part_begins_within_code() -> None:
    code = Kept("/a b", "`/a b`")
    (piece,) = pieces_of(Block([code, *block_of(" sees ").tokens, Kept("x", "`x`")], 1), "sentence", "en")
    assert isinstance(piece, Piece)

    def model(text: str) -> str:
        return text.replace("sees x", "does").replace("sees", "SEES")

    assert decode_with(piece, model).text == "/a b SEES x"
    assert written_with([piece], model) == "`/a b` SEES `x`"


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("A heading", "Ein Titel.", "Ein Titel"),
        ("A sentence.", "Ein Satz.", "Ein Satz."),
        ("And so", "Und so...", "Und so..."),
        ("See 3", "Siehe 3!", "Siehe 3!"),
    ],
)
def test_a_heading_gets_no_full_stop(source: str, output: str, expected: str) -> None:
    assert written_with(pieces_of(block_of(source), "sentence", "en"), {source: output}.__getitem__) == expected


def test_a_piece_that_is_too_long_is_divided_and_named() -> None:
    (piece,) = pieces_of(block_of("one two, three four, five six"), "paragraph", "en")
    assert isinstance(piece, Piece)
    decoded = decode_with(piece, str.upper, Rules(fits=lambda text: len(text) <= 12))
    assert decoded.text == "ONE TWO, THREE FOUR, FIVE SIX" and [each.kind for each in decoded.findings] == ["split"]


def test_markup_of_any_depth_takes_linear_time() -> None:
    count = 100_000
    tokens = [
        *(Open("<b>", n) for n in range(count)),
        Text("word", "word"),
        *(Close("</b>", n) for n in range(count)[::-1]),
    ]
    block = Block(tokens, 1)
    assert written_with(pieces_of(block, "sentence", "en"), str.upper) == block.raw.replace("word", "WORD")


def test_many_texts_that_must_survive_take_linear_time() -> None:
    text = "{a} word " * 5000
    rules = Rules(lambda part: len(part) <= 500)
    parts = pieces_of(block_of(text), "paragraph", "en")
    assert written_with(parts, lambda part: part.replace("{a}", "").upper(), rules) == text.replace("word", "WORD")


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


SPELLED = [
    ("R&D, A < b", "D&D, C < b", "D&D, C < b"),  # bare, as in the source
    ("A < b here", "Ici a <b", "Ici a &lt;b"),  # it would be a tag
    ("Cats & dogs", "Dogs &copy", "Dogs &amp;copy"),
    ("one", "a & b", "a &amp; b"),
]


@pytest.mark.parametrize(("source", "output", "expected"), SPELLED)
def test_bare_characters_are_written_again_only_where_they_stood(source: str, output: str, expected: str) -> None:
    block = Block([Text(source, source)], 1, escaped)
    assert written_with(pieces_of(block, "sentence", "en"), {source: output}.__getitem__) == expected


def test_references_are_written_again_in_their_order() -> None:
    block = Block([Text("a", "a"), Text("é", "&eacute;"), Text(" é b", " é b")], 1, escaped)
    parts = [*pieces_of(block, "sentence", "en")]
    assert written_with(parts, lambda _: "Cé dé") == "C&eacute; dé"
    assert written_with(parts, lambda _: "é é é") == "&eacute; &eacute; &eacute;"


# "|" is a point. It is placed after the nearest word, and never within a word
POINTS = [
    (
        "Note:| the value of the property",
        "Beachten Sie den Wert der Eigenschaft",
        "Beachten| Sie den Wert der Eigenschaft",
    ),
    ("First,| the element of the array", "Zuerst das Element des Arrays", "Zuerst| das Element des Arrays"),
    ("Save,| close", "Speichern schliessen", "Speichern| schliessen"),
    ("He said| it", "Er hat's gesagt", "Er hat's| gesagt"),
    ("It is 1| of 10", "Das ist 1,5 von", "Das ist| 1,5 von"),
    ("A| e\u0301te", "e\u0301te\u0301 a", "e\u0301te\u0301| a"),
    ("|Open it", "Es wird offnen", "|Es wird offnen"),
    ("Open it|", "Es wird", "Es wird|"),
    ("One| two.", "Eins zwei.", "Eins| zwei."),  # a guard
    ("word", "wort", "wort"),  # a guard
]


@pytest.mark.parametrize(("source", "output", "expected"), POINTS)
def test_a_point_is_never_put_into_a_word(source: str, output: str, expected: str) -> None:
    tokens = [Point("|") if each == "|" else Text(each, each) for each in re.split(r"(\|)", source) if each]
    (piece,) = [each for each in pieces_of(Block(tokens, 1), "paragraph", "en") if isinstance(each, Piece)]
    written = written_with(pieces_of(Block(tokens, 1), "paragraph", "en"), {piece.text: output}.__getitem__)
    assert written == expected


BASE64 = "iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4" * 4
MINIFIED = "!function(e,t){for(var n=0;n<t.length;n++){var r=t[n];e[r.key]=r}}(a,b);" * 3
NO_LANGUAGE = [
    (BASE64, []),
    (f"Here is a font: {BASE64} and so on.", ["Here is a font:", "and so on."]),
    (MINIFIED, []),
    ("a = b + c", []),
    ("E = mc\u00b2", []),
    ("\u2211 x\u1d62 \u2248 \u221an", []),
    ("Ab1Cd2Ef3Gh4Ij5Kl6 Mn7Op8Qr9St0Uv1", []),
    # Guards: all of these are natural language
    ("Donaudampfschifffahrtsgesellschaftskapitaensmuetze", ["Donaudampfschifffahrtsgesellschaftskapitaensmuetze"]),
    (
        "See https://example.org/a/very/long/address for more.",
        ["See https://example.org/a/very/long/address for more."],
    ),
    ("The value = 5 here", ["The value = 5 here"]),
    ("MP3, H264 and x86 in Windows95", ["MP3, H264 and x86 in Windows95"]),
    ("\u5024\u306f = 5", ["\u5024\u306f = 5"]),
    ("I", ["I"]),
    ("word1 word2 word3 word4 word5", ["word1 word2 word3 word4 word5"]),
    ("(file(s), and/or) [x] -- {name}: {count}", ["(file(s), and/or) [x] -- {name}: {count}"]),
]


@pytest.mark.parametrize(("text", "decoded"), NO_LANGUAGE)
def test_what_is_no_language_is_copied_and_listed(text: str, decoded: list[str]) -> None:
    parts = [*pieces_of(block_of(text), "sentence", "en")]
    assert [part.text for part in parts if isinstance(part, Piece)] == decoded
    found = [part.finding for part in parts if isinstance(part, Literal) and part.finding is not None]
    assert [(each.line, each.kind) for each in found] == [(1, "copied")] * (decoded != [text])
    assert raw_of(parts) == text


# References and escapes of a document, whether the sentence is decoded around them, and what is listed as lost
REFERENCES = [
    ("\u00a9", "&copy;", True),
    ("<", "&lt;", True),
    (">", "&gt;", True),
    ("\u00ae", "&reg;", True),
    ("\u00bd", "&frac12;", True),
    ("\u20ac", "&euro;", True),
    ("\u2192", "&rarr;", True),
    ("[", r"\[", True),
    ("*", r"\*", True),
    ("\u00a0", "&nbsp;", False),
    ("\u200e", "&lrm;", False),
    ("\u2009", "&thinsp;", False),
]


@pytest.mark.parametrize(("text", "raw", "survives"), REFERENCES)
def test_references_survive_or_are_listed(text: str, raw: str, survives: bool) -> None:
    (piece,) = pieces_of(block_of("Write this ", Text(text, raw), " sign here."), "sentence", "en")
    assert isinstance(piece, Piece)
    decoded = decode_with(piece, lambda prompt: prompt.replace(text, "").upper())
    findings = [(each.kind, each.what) for each in decoded.findings]
    assert findings == ([("parts", piece.text)] if survives else [("lost", raw)])
    assert (raw in written_with([piece], lambda prompt: prompt.replace(text, "").upper())) == survives


def test_a_lost_number_is_listed_with_its_line() -> None:
    (piece,) = pieces_of(Block([Text("In 1984 there were 3.", "In 1984 there were 3.")], 7), "sentence", "en")
    assert isinstance(piece, Piece)
    assert decode_with(piece, lambda prompt: "1984").findings[-1] == Finding(7, "lost", "3")


@pytest.mark.parametrize(
    ("source", "output", "lost"),
    [
        ("Save as...", "Sichern unter", "..."),
        ("Save as...", "Sichern unter..", "..."),
        ("Save as...", "Sichern unter ...", None),
        ("Save as...", "Sichern unter\u2026", None),
        ("One... two.... three", "Eins .... zwei drei", "...."),
        ("One... two\u2026", "Eins zwei\u2026", "..."),
        ("Save as.", "Sichern unter...", None),
    ],
)
def test_lost_dots_are_listed(source: str, output: str, lost: str | None) -> None:
    (piece,) = pieces_of(block_of(source), "paragraph", "en")
    assert isinstance(piece, Piece)
    assert [each.what for each in decode_with(piece, lambda prompt: output).findings if each.kind == "lost"] == (
        [] if lost is None else [lost]
    )
