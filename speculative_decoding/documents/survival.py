"""Finds what must appear unchanged in an output, such as placeholders and links, and tells what of it was lost.

Each rule below is one that reference translations follow. Knows nothing about formats and models.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer; Chinese and Japanese
UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
LETTER = rf"[^\W{UNSPACED}]"  # or a digit or underscore, of a word between spaces
TOKEN = re.compile(rf"{LETTER}+|\S")
START, END = rf"(?<!{LETTER})", rf"(?!{LETTER})"

# Bounded or possessive repetitions, each begun at most once in a word, keep the search linear.
PRINTF = r"[-+#0']{0,3}(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?(?:hh?|ll?|[Lqjzt])?[diouxXeEfFgGaAcrspn@]"
FILES = (
    "c cpp css csv gif h htm html ini java jpeg jpg js json jsx md mjs mp3 mp4 pdf png py rs rst sh sql srt svg toml"
)
FILES += " ts tsv tsx txt vtt wasm wav webm webp xml yaml yml zip"
ENDS_AS_FILE = "|".join(rf"(?<=\.{suffix})" for suffix in FILES.split())
EXACT = [
    rf"(?<![\d%])%(?:\d{{1,2}}\$|\(\w{{1,60}}\))?{PRINTF}{LETTER}{{0,2}}{END}",  # "%1$s", "%(name)s"; "%dpx"
    r"%%",
    rf"(?<!%)%[A-Z_a-z]\w{{1,60}}%{END}",  # "%PATH%"
    r"\{\{[^{}\n]{1,80}\}\}|\$?\{[\w.:!$-]{0,60}\}",  # "{{ name }}", "{0}", "${name}"
    rf"(?<![\w$])\$[A-Za-z_]\w{{0,60}}+{END}",  # "$HOME"
    r"</?(?:\d{1,3}|[A-Za-z][\w:-]{0,40})(?:\s[^<>\n]{0,300}=[^<>\n]{0,300})?\s{0,2}/?>",  # "<0>", "</b>", "<br/>"
    r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]\w{1,31});",
    rf"(?<![\w.+-])[\w.+-]{{1,64}}@[\w-]{{1,63}}+(?:\.[\w-]{{1,63}}+)+{END}",  # an e-mail address
    r"(?<!`)(`{1,2})(?!`)[^\n]{1,200}?(?<!`)\1(?!`)",  # code
    rf"(?<![\w.-])--?[a-z][a-z\d]*+(?:-[a-z\d]++)+{END}|(?<![\w.-])--[a-z][a-z\d]++{END}",  # "--dry-run"
    r"(?<![\w.])[A-Za-z_][\w.]*+\(\)",  # "open()"
    rf"(?<![\w.])[a-z]{{2,}}+(?:[A-Z][a-z\d]*+)++{END}",  # "textContent"
    rf"(?<![\w.])[A-Za-z\d]*+(?:_++[A-Za-z\d]+)+_*+{END}",  # "MAX_LENGTH", "__init__"
    rf"(?<![\w./-])(?:[.~]{{0,2}}/)?[\w-]++(?:[./]++[\w-]++)*+(?:{ENDS_AS_FILE})",  # "docs/index.html"
    r"(?<![\w./~-])[.~]{0,2}/[\w-]++(?:[./][\w-]++)+/?",  # "/usr/bin"
]
URL = rf"{START}(?:(?:https?|ftp)://|mailto:|www\.)[^\s<>\"`|{UNSPACED}“”„«»]{{2,}}"
URL_STARTS = ("http", "ftp", "mailto:", "www.")
ENDS_SENTENCE = ".,;:!?'\u2019\u2026*"
OPENING = {")": "(", "]": "[", "}": "{"}

UNITS = "% ‰ ° °C °F $ € £ ¥ ₹ EUR USD GBP CHF JPY B kB KB MB GB TB PB KiB MiB GiB TiB kbit Mbit Gbit kbps Mbps Gbps"
UNITS += " KB/s MB/s GB/s Hz kHz MHz GHz THz nm µm μm mm cm dm km m mm² cm² m² km² m³ cm³ µg mg g kg t ml mL cl l L"
UNITS += " ns µs μs ms s min h px pt em rem vh vw dpi ppi fps rpm V mV kV mA W mW kW MW Wh kWh Ω Pa hPa kPa bar"
UNITS += " J kJ cal kcal dB K km/h m/s mph lb oz ft"
UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS.split(), key=len, reverse=True))
SPACE = r"[ \u00a0\u202f\u2009]"
NUMBER = rf"(?:\d{{1,3}}(?:{SPACE}\d{{3}}(?!\d)){{1,6}}+|\d{{1,30}}+)(?:[.,'\u2019]\d{{1,30}}+){{0,10}}+"
AMOUNT = rf"(?P<before>[$€£¥₹]){SPACE}?(?P<amount>{NUMBER})|(?P<number>{NUMBER})[-\u2011]?{SPACE}?(?P<after>{UNIT}){END}(?!%)"
QUANTITY = re.compile(rf"(?<![\w.,'\u2019])(?:{AMOUNT})")
FOUND = [re.compile(pattern) for pattern in (*EXACT, URL)]


class Span(NamedTuple):
    """A part of a text that must appear in the output.

    start, end: Its place in the text, in characters.
    is_quantity: Whether its number may be written differently, such as "1,000.5 GB" as "1.000,5 GB".
    """

    start: int
    end: int
    text: str
    is_quantity: bool = False


class Terms:
    """Finds any of many texts in a text, case-sensitively, as whole words, the longest first.

    The time does not depend on the number of texts, only on how many lengths those with the same first word have.
    """

    def __init__(self, terms: Iterable[str]) -> None:
        self._terms = {term.strip() for term in terms} - {""}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for term in self._terms:
            lengths[TOKEN.findall(term)[0]].add(len(term))
        self._lengths = {first: sorted(each, reverse=True) for first, each in lengths.items()}

    def find(self, text: str) -> Iterator[Span]:
        end = 0
        for token in TOKEN.finditer(text) if self._terms else ():
            start = token.start()
            if start >= end and (found := self._at(text, token[0], start)):
                end = start + len(found)
                yield Span(start, end, found)

    def _at(self, text: str, first: str, start: int) -> str | None:
        for length in self._lengths.get(first, ()):
            term = text[start : start + length]
            if term in self._terms and not is_inside_word(text, start + length):
                return term
        return None


def is_inside_word(text: str, position: int) -> bool:
    """Whether the characters on both sides of a position belong to one word."""
    return position > 0 and re.match(f"{LETTER}{{2}}", text[position - 1 : position + 1]) is not None


@lru_cache(maxsize=8)
def index_of(terms: frozenset[str]) -> Terms:
    return Terms(terms)


def must_survive(text: str, terms: Collection[str]) -> list[Span]:
    """Return what must appear in an output of this text: in order, without overlaps; of two that overlap, the longer.

    terms: Texts of the user. A frozenset of thousands costs no time per call.
    """
    found = [trimmed(text, *match.span()) for pattern in FOUND for match in pattern.finditer(text)]
    found += [Span(*match.span(), match[0], is_quantity=True) for match in QUANTITY.finditer(text)]
    found += index_of(frozenset(terms)).find(text)
    taken: list[Span] = []
    for span in sorted(found, key=lambda each: each.start - each.end):
        i = bisect_left(taken, span)
        if (i == 0 or taken[i - 1].end <= span.start) and (i == len(taken) or span.end <= taken[i].start):
            taken.insert(i, span)
    return taken


def trimmed(text: str, start: int, end: int) -> Span:
    """Return a span; if it is a URL, without the punctuation that ends a sentence or closes brackets around it."""
    if text.startswith(URL_STARTS, start):
        count = Counter(text[start:end])
        while (last := text[end - 1]) in ENDS_SENTENCE or count[last] > count[OPENING.get(last, last)]:
            count[last] -= 1
            end -= 1
    return Span(start, end, text[start:end])


def lost(spans: Sequence[Span], output: str) -> list[Span]:
    """Return the spans that an output lacks, in order. Two in the source need two in the output."""
    left = Counter[str | tuple[str, str]](span.text for span in Terms(each.text for each in spans).find(output))
    left.update(quantity(match) for match in QUANTITY.finditer(output))
    missing = []
    for span in spans:
        match = QUANTITY.fullmatch(span.text) if span.is_quantity else None
        key = quantity(match) if match else span.text.strip()
        left[key] -= 1
        if key and left[key] < 0:
            missing.append(span)
    return missing


def quantity(match: re.Match[str]) -> tuple[str, str]:
    """Return the number and unit of a match of `QUANTITY`, in one spelling for all languages."""
    *groups, last = re.split(r"\D", match["number"] or match["amount"])
    number = "".join(groups) + ("." if groups and len(last) != 3 else "") + last
    return "".join(str(unicodedata.digit(each, each)) for each in number), match["after"] or match["before"]
