"""Parts that must survive are found in a source and counted in its output, and only lost parts are reported."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.documents.code_patterns import CODE_PATTERNS
from speculative_decoding.documents.survival import Terms, is_within_word, lost, lost_numbers, must_survive

TERMS = frozenset({"Firefox", "Firefox Nightly", "C++", ".NET", "東京", "a b", "b c d", "5 GB"})
# Runs that must survive whole, from the documentation of the programs that write them. OLD are guards
OLD = {
    "printf": ["%s", "%1$s", "%-5.2f", "%(name)s", "%%", "%dpx", "%@", "%m"],
    "variable": ["%PATH%", "$HOME"],
    "braces": ["{name}", "{0}", "{}", "{{ x }}", "${x}", "%{count}", "{% if x %}"],
    "tag": ["<0>", "</0>", "<br/>", "<br />", '<a href="x">'],
    "entity": ["&amp;", "&#160;", "&#x2014;", "&copy;"],
    "email": ["first.last+tag@mail.example.org"],
    "code": ["`x = 1`", "``a`b``"],
    "flag": ["--dry-run", "--help"],
    "function": ["open()", "os.path.join()"],
    "camel": ["textContent", "innerHTML"],
    "snake": ["MAX_LENGTH", "snake_case", "_private_name"],
    "file": ["README.md", "docs/index.html", "../a-b.js", "/etc/x.toml"],
    "path": ["/usr/bin", "~/.config/x"],
    "url": ["https://a.org/x_(y)?q=1&r=2#z", "ftp://a.org", "mailto:a@b.org", "www.example.org/a"],
}
NEW = {
    "numbered": ["%1", "%L2", "%12", "%1!d!", "%2!s!"],  # Qt, FormatMessage of Windows
    "variable": [
        "%%NAME%%",
        "%user.name%",
        "%admin",
        "@count",
        "@octo-cat",
        "@fig:one",
        "!name",
        ":attribute",
        "$t(page.title, {n})",
        "%<page>s",
        "@:page.title",
        "@(name)",
    ],  # Drupal, Laravel
    "braces": [
        *["{ $userName }", "{ -brand-name }", "{ NUMBER($x, minimumFractionDigits: 2) }"],  # Fluent
        *["{0,10:N2}", "{0:#,##0.00}", "{1:yyyy-MM-dd}", "{0:dddd MMMM}"],  # .NET
        *["{name:>10}", "{name!r}", "{size:,}", "{value:.2%}"],  # Python
        *["{0, number, #.##}", "{d, date, EEEE dd MMMM}", "{a,choice,0#none|1#one|2#{0}}"],  # Java
        *["{{ name | upper }}", '{{< ref "page.md" >}}', "{# comment #}", "#{name}", '{"key": {"a": 1}}'],
    ],
    "tag": ["<color=red>", "<size=120%>", "<sprite name=x>", "<%= user.name %>", "<?php echo $x; ?>", "<!-- here -->"],
    "brackets": ["[/b]", "[color=red]", '[quote="Maria"]', "[[Page#Part]]"],
    "email": ["*@example.net"],
    "flag": ["-x"],
    "dotted": ["page.title", "db.example.org"],
    "snake": ["__count__", "__init__", "config.max_size", "x86_64"],
    "mixed": ["a^2", "Xy7$kp&2", "user@host"],
    "wildcard": ["*.txt"],
    "url": ["localhost:8080/admin", "db.example:5432"],
    "emoji": [":warning:", ":+1_tone2:"],
    "formula": ["$E = mc^2$", "$n$", r"$\alpha$", "$$x + y$$", r"\(a + b\)", r"\[x = 1\]"],
    "backslash": [
        r"C:\new\table.txt",
        r"\\server\share\x",
        r"..\lib\x",
        r"HKEY\Software",
        r"\d+",
        r"\alpha",
        r"\newpage",
    ],
    "identifier": ["1.2.3", "v10.15.7", "#ff0000", "#1432", "a1b2c3d", "0x1F", "C++", "C#"],
    "symbol": ["©", "®", "™", "→", "✓", "👍🏽", "👨‍👩‍👧", "☎️"],
}
NEW["identifier"].append("123e4567-e89b-12d3-a456-426614174000")
KEPT = {name: [*OLD.get(name, []), *NEW.get(name, [])] for name in [*OLD, *NEW]}
SIGNS = {  # only the sign must survive, not the word
    "Save &As": ["&"],
    "_Open": ["_"],
    "~Delete it": ["~"],
    "#tag": ["#"],
    "size=large": ["="],
    "one|two": ["|"],
    "[optional]": ["[", "]"],
    "this is ==marked==": ["==", "=="],
    r"one\ntwo": [r"\n"],
    r"one.\n\nTwo\tthree": [r"\n", r"\n", r"\t"],
    "A < b": ["<"],
    "Menu > File": [">"],
    "a -> b": ["->"],
    "<your name>": ["<", ">"],
    "{one of these}": ["{", "}"],
    "Press [b]Enter[/b] now": ["[b]", "[/b]"],
    r"caf\u00e9 \x41": [r"\u00e9", r"\x41"],
}
QUANTITIES = [
    "5 GB",
    "5GB",
    "1,000.5 kg",
    "10%",
    "10 %",
    "$5",
    "€ 1.50",
    "20 °C",
    "-3 °C",
    "100\u202fkm/h",
    "5\u00a0mm",
]
# Also guards
PROSE = [
    "100 % sure",
    "a 50 % discount",
    "100%d",
    "AT&T; R&D, Q&A",
    "and/or, either... or",
    "_emphasis_ and *this*",
    "meantI",
    "McDonald and iPhone",
    "well-known rock'n'roll",
    "It's 12:30 - or 5 to 6.",
    "2 apples and 1960 people",
    "e.g. this, i.e. that",
    "--",
    "well -- that is... what?! Really?!",
    "____",
    "one ` two",
    "Sent at 5. GB is short.",
    "in the 1960s and 90s",
    "les 3 l'ont vu",
    "file(s), (optional), A:B, 10-20",
    "I <3 you",
    r"don\'t say \"no\"",
    "¿Qué? ¡Hola!",
    "你好\uff0c世界。東京タワーへようこそ\uff01",
    "It costs $ 5 or 6$ a month",
    "note: this, that :)",
    "He said: 'no'; she (too) said no.",
    "MP3, UTF-8 and 3D in 2nd place",
    "e.g. 1.5.2020, at 5 p.m.",
]
fragments = st.sampled_from([*sum(KEPT.values(), QUANTITIES), *PROSE, *TERMS, *"a5 .,%$`<>{}()_-/\n東é"])
texts = st.one_of(st.text(max_size=40), st.lists(fragments, max_size=8).map("".join))


def found(text: str, terms: frozenset[str] = frozenset()) -> list[str]:
    return [span.text for span in must_survive(text, terms)]


@pytest.mark.parametrize("template", ["{}", "See {}, please.", "({})", "Zur „{}“-Seite", "Das „{}“!", "見る {} 。"])
@pytest.mark.parametrize("name", KEPT)
def test_matches_of_each_pattern_are_found_in_text(name: str, template: str) -> None:
    for each in KEPT[name]:
        assert found(template.replace("{}", each)) == [each]


def test_every_pattern_has_an_example() -> None:
    assert KEPT.keys() | {"mnemonic"} == CODE_PATTERNS.keys()


@pytest.mark.parametrize("text", PROSE)
def test_prose_has_nothing_that_must_survive(text: str) -> None:
    assert set(found(text)) <= {"100 %", "50 %", "100%", "$ 5", "6$"}


@pytest.mark.parametrize("text", SIGNS)
def test_only_the_sign_of_a_word_must_survive(text: str) -> None:
    assert found(text) == SIGNS[text]
    assert [span.text for span in lost(must_survive(text, ()), "Wort")] == SIGNS[text]
    assert lost(must_survive(text, ()), "Wort ".join(["", *SIGNS[text], ""])) == []


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("(https://a.org/x)", "https://a.org/x"),
        ("https://a.org/x_(y)).", "https://a.org/x_(y)"),
        ("Is it http://a.org/?", "http://a.org/"),
        ("**http://a.org**", "http://a.org"),
        ("http://a.org/%s/{id}", "http://a.org/%s/{id}"),
    ],
)
def test_url_ends_before_punctuation_of_the_sentence(text: str, url: str) -> None:
    assert found(text) == [url]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("lines (1-%d) of it", ["%d"]),
        ("Step 1 %s of 2", ["%s"]),
        ("Step 1 %(name)s of 2", ["%(name)s"]),
        ("1 % or 5% of 5%ig, 7-%s", ["1 %", "5%", "5%", "%s"]),
    ],
)
def test_a_placeholder_after_a_number_is_no_percent_sign(text: str, spans: list[str]) -> None:
    assert found(text) == spans


@pytest.mark.parametrize("end", [" complete", ".", "", "-"])
@pytest.mark.parametrize("placeholder", ["%d", "%s", "%i", "%1$d", "%.1f", "%(percent)d", "{0}"])
def test_a_doubled_percent_sign_after_a_placeholder_is_not_a_part_of_it(placeholder: str, end: str) -> None:
    assert found(f"Now {placeholder}%%{end}") == [placeholder, "%%"]


def test_terms_are_whole_words_and_the_longest_wins() -> None:
    text = "Firefox, firefox, Firefoxes, Firefox Nightly, C++, .NET, 東京タワー, xFirefox"
    assert found(text, TERMS) == ["Firefox", "Firefox Nightly", "C++", ".NET", "東京"]


@given(texts)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_spans_are_in_order_without_overlaps_and_nothing_is_lost_in_the_source(text: str) -> None:
    spans = must_survive(text, TERMS)
    assert all(span.text == text[span.start : span.end] for span in spans)
    assert all(one.end <= other.start for one, other in pairwise(spans))
    assert lost(spans, text) == []


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        (r"style(?![\w:-])", ["style", "[", r"\w:-", "]"]),
        (r"^(.*\.java):(\d+):\t([^:]+)$", [r"\d+", r"\t", "[", "]"]),
        (r"(^\s+)?(?=<b\b(?!-))", [r"^\s+", r"?=<b\b"]),
    ],
)
def test_no_part_of_a_regular_expression_is_empty(text: str, spans: list[str]) -> None:
    assert [span.text for span in must_survive(text, ())] == spans


@given(
    st.lists(st.sampled_from(sum(KEPT.values(), QUANTITIES)), max_size=8, unique=True),
    st.randoms(use_true_random=False),
)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_what_an_output_lacks_is_lost_in_any_order(items: list[str], rng: random.Random) -> None:
    spans = must_survive(" x ".join(items), ())
    kept = [item for item in items if rng.random() < 0.7]
    rng.shuffle(kept)
    missing = lost(spans, " y ".join(kept))
    there = [span.text for span in must_survive(" y ".join(kept), ())]
    assert lost(must_survive(" y ".join(there), ()), " x ".join(items)) == []
    assert len(missing) == len(spans) - len(there)


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("1,000.5 GB", "1.000,5 GB"),
        ("1,000.5 GB", "1\u202f000,5\u00a0GB"),
        ("10,000 km", "10'000 km"),
        ("5 GB", "5GB"),
        ("a 5 GB file", "eine 5-GB-Datei"),
        ("10%", "10 %"),
        ("15% more", "15%ige Erhöhung"),
        ("10%", "10 Prozent"),
        ("$5", "5 $"),
        ("$5", "5 Dollar"),
        ("US$5", "5 US-Dollar"),
        ("within 24 h", "innerhalb von 24 Stunden"),
        ("5 GB", "5 ГБ"),
        ("5 km", "5公里"),
        ("5 GB", "最大5GBの"),
        ("5 GB", "\u0665 GB"),
    ],
)
def test_quantities_may_be_written_as_the_language_requires(source: str, output: str) -> None:
    spans = must_survive(source, ())
    assert spans and lost(spans, output) == []


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("5 GB", "5 MB"),
        ("5 GB", "15 GB"),
        ("5 GB", "5."),
        ("1.5 GB", "15 GB"),
        ("$5", "5 €"),
        ("{a} {a}", "{a}"),
        ("<0>x</0>", "<0>x"),
        ("Firefox", "Firefoxes"),
        ("https://a.org and https://a.org/b", "https://a.org/b"),
        ("`x`", "x"),
        ("openFile()", "öffneDatei()"),
        (r"one\ntwo", "eins zwei"),
        ("10 kΩ", "10 k"),
        ("the %s's page", "Die %s der %s der Seite"),
        ("§ 12", "12"),
        ("a © b", "a (c) b"),
    ],
)
def test_one_span_is_lost(source: str, output: str) -> None:
    assert len(lost(must_survive(source, TERMS - {"5 GB"}), output)) == 1


def test_counts_decide_which_of_several_is_lost() -> None:
    spans = must_survive("{a} {b} {a} {a}", ())
    assert lost(spans, "{a} x {a}") == [spans[1], spans[3]]


UNITS = [
    "aB",
    "a@b.",
    "/a",
    "{",
    "`a",
    "http://)",
    "1 000 ",
    "$a",
    "$=",
    "\\a",
    "\\(",
    "[a]",
    "[a=",
    "<a ",
    "<a=",
    "%a",
    "{a:",
    "{{a",
]
UNITS += [
    "{a, date",
    ":a",
    "a_",
    "__a",
    "a^b",
    "a=b",
    "&a",
    "#f",
    "0a",
    "a-",
    "-a ",
    "1.2.",
    "©",
    "\u200d",
    "[[a",
    "@a",
    "!a",
    "a:1",
    "_a ",
]


@pytest.mark.parametrize("unit", UNITS)
def test_a_hundred_thousand_characters_take_linear_time(unit: str) -> None:
    text = (unit * 100_000)[:100_000]
    assert lost(must_survive(text, TERMS), text) == []


def test_thousands_of_terms_cost_little() -> None:
    terms = frozenset(f"term {i} of {i % 97}" for i in range(50_000))
    text = "term 1 of 1, term 2 of 3, " * 4000
    assert Counter(found(text, terms)) == {"term 1 of 1": 4000}


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.lists(st.text("ab .京", max_size=6), max_size=8), st.text("aab  .京", max_size=30))
def test_terms_are_those_of_a_search_at_each_place(terms: list[str], text: str) -> None:
    """A guard: the longest terms that are whole words are found."""
    stripped = {term.strip() for term in terms} - {""}
    borders = [at for at in range(len(text) + 1) if not is_within_word(text, at)]
    all_spans = [(start, end) for start in borders for end in borders if start < end and text[start:end] in stripped]
    longest = [
        (start, end)
        for start, end in all_spans
        if not any(a <= start and end <= b and (a, b) != (start, end) for a, b in all_spans)
    ]
    assert [(span.start, span.end) for span in Terms(terms).find(text)] == sorted(longest)


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ([f"foo bar{' bar' * (i % 2)}{'x' * i}" for i in range(6000)], "foo bar " * 40_000),
        (["a b " * i + "c" for i in range(1, 700)], "a b " * 20_000),
        (["-" * i for i in range(1, 700)], "- -" * 10_000),
    ],
    ids=["lengths of one first word", "a common start", "symbols"],
)
def test_terms_with_a_common_start_take_linear_time(terms: list[str], text: str) -> None:
    assert len([*Terms(terms).find(text)]) <= len(text)


@pytest.mark.parametrize(
    ("source", "output", "missing"),
    [
        ("In 1984, 3 of 10", "1984: 3 von 10", []),
        ("1,000.5 of 2,000", "1.000,5 von 2 000", []),
        ("on 2020-03-04 at 5:30", "am 4.3.2020 um 5.30 Uhr", []),
        ("3 files", "٣ ملفات", []),
        ("MP3 and 4K", "MP3, 4K", []),
        ("12 of 12", "12", ["12"]),
        ("In 1984 and 1985", "1984", ["1985"]),
        ("1,000 people", "100 Personen", ["1,000"]),
        ("3 files", "drei Dateien", ["3"]),
        ("version 1.5", "Version 15", ["1.5"]),
    ],
)
def test_lost_numbers_are_found(source: str, output: str, missing: list[str]) -> None:
    assert lost_numbers(source, output) == missing
