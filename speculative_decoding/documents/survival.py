"""Finds what must appear unchanged in an output, such as placeholders and links, and what of it was lost.

Reference translations keep each kind listed here (docs/documents.md). Nothing here knows formats or models.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from .layout import UNSPACED

LETTER = rf"[^\W{UNSPACED[1:-1]}]"  # of a word between spaces; also a digit or an underscore
TOKEN = re.compile(rf"{LETTER}+|\S")
START, END = rf"(?<!{LETTER})", rf"(?!{LETTER})"

# Repetitions are bounded or possessive, and a lookbehind allows few starts in a word, so the search is linear.
PRINTF = r"[-+#0']{0,3}(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?(?:hh?|ll?|[Lqjzt])?[diouxXeEfFgGaAcrspn@]"
FILES = (
    "c cpp css csv gif h htm html ini java jpeg jpg js json jsx md mjs mp3 mp4 pdf png py rs rst sh sql srt svg"
    " toml ts tsv tsx txt vtt wasm wav webm webp xml yaml yml zip"
)
ENDS_AS_FILE = "|".join(rf"(?<=\.{suffix})" for suffix in FILES.split())
EXACT = {
    "printf": rf"(?<![\d%])%(?:\d{{1,2}}\$|\(\w{{1,60}}\))?{PRINTF}{LETTER}{{0,2}}{END}|%%",  # %1$s, %(name)s, %dpx
    "variable": rf"(?<!%)%[A-Za-z_]\w{{1,60}}%{END}|(?<![\w$])\$[A-Za-z_]\w{{0,60}}+{END}",  # %PATH%, $HOME
    "braces": r"\{[{%][^{}\n]{1,200}[%}]\}|[$#%@]?\{[\w.:!$-]{0,60}\}",  # {{ name }}, {0}, ${name}
    "tag": r"</?(?:\d{1,3}|[A-Za-z][\w:-]{0,40})(?:\s[^<>\n]{0,300}=[^<>\n]{0,300})?\s{0,2}/?>",  # <0>, </b>, <br/>
    "entity": r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});",  # &amp;
    "email": rf"(?<![\w.+-])[\w.+-]{{1,64}}@[\w-]{{1,63}}+(?:\.[\w-]{{1,63}}+)+{END}",
    "code": r"(?<!`)(`{1,2})(?!`)[^\n]{1,200}?(?<!`)\1(?!`)",
    "flag": rf"(?<![\w.-])--[a-z][a-z\d]*+(?:-[a-z\d]++)*+{END}",  # --dry-run
    "function": r"(?<![\w.])[A-Za-z_][\w.]*+\(\)",  # open()
    "camel": rf"(?<![\w.])[a-z]{{2,}}+(?:[A-Z][a-z\d]*+)++(?<![a-z]I){END}",  # textContent, not "andI"
    "snake": rf"(?<![\w.])_*+[A-Za-z\d]++(?:_++[A-Za-z\d]++)++_*+{END}",  # MAX_LENGTH, not _emphasis_
    "file": rf"(?<![\w./-])(?:[.~]{{0,2}}/)?[\w-]++(?:[./]++[\w-]++)*+(?:{ENDS_AS_FILE})",  # docs/index.html
    "path": r"(?<![\w./~-])[.~]{0,2}/\.?[\w-]++(?:[./]\.?[\w-]++)++/?",  # /usr/bin
    "url": rf"{START}(?:(?:https?|ftp)://|mailto:|www\.)[^\s<>\"`|“”„«»{UNSPACED[1:-1]}]{{2,}}",
}
KINDS = {kind: re.compile(pattern) for kind, pattern in EXACT.items()}
URL_STARTS = ("http", "ftp", "mailto:", "www.")
ENDS_SENTENCE = ".,;:!?'\u2019\u2026*"
OPENING = {")": "(", "]": "[", "}": "{"}

UNITS = (
    "°C °F EUR USD GBP CHF JPY B kB KB MB GB TB PB KiB MiB GiB TiB kbit Mbit Gbit kbps Mbps Gbps KB/s MB/s GB/s"
    " Hz kHz MHz GHz THz nm µm μm mm cm dm km m mm² cm² m² km² m³ cm³ µg mg g kg t ml mL cl l L ns µs μs ms min h"
    " px pt em rem vh vw dpi ppi fps rpm V mV kV mA W mW kW MW Wh kWh Ω Pa hPa kPa bar J kJ cal kcal dB K km/h m/s"
    " mph lb oz ft"
)
UNIT = "|".join(map(re.escape, sorted(UNITS.split(), key=len, reverse=True)))
SPACE = r"[ \u00a0\u202f\u2009]"
NUMBER = rf"(?:\d{{1,3}}(?:{SPACE}\d{{3}}(?!\d)){{1,6}}+|\d{{1,30}}+)(?:[.,'\u2019]\d{{1,30}}+){{0,10}}+"
MONEY = rf"(?P<before>[$€£¥₹]){SPACE}?(?P<amount>{NUMBER})"
MEASURE = rf"(?<![.,'\u2019]){START}(?P<number>{NUMBER})[-\u2011]?{SPACE}?"
SYMBOL = rf"(?P<after>(?:{UNIT}|(?<!0)s)(?![/'\u2019]?{LETTER})|[%‰°$€£¥₹](?!%))"  # not "1960s"
QUANTITY = re.compile(rf"{MONEY}|{MEASURE}{SYMBOL}")
IN_OUTPUT = re.compile(rf"{MONEY}|{MEASURE}(?:{SYMBOL}|(?=[^\W\d_]))")  # a unit may become a word: "24 h", "24 Stunden"

Key = str | tuple[str, str | None]  # a text, or a number and its unit


class Required(NamedTuple):
    """A part of a text that must appear in the output.

    Args:
        start: Its place in the text, in characters.
        end: Where it ends.
        text: What it says.
        is_quantity: Whether its number and unit may be written differently: "1,000.5 GB" as "1.000,5 GB".
    """

    start: int
    end: int
    text: str
    is_quantity: bool = False


class Terms:
    """Finds any of many terms in a text: case-sensitively, as whole words, the longest first.

    The time does not depend on how many there are, only on how many lengths those with the same first word have.
    """

    def __init__(self, terms: Iterable[str]) -> None:
        self._terms = {term.strip() for term in terms} - {""}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for term in self._terms:
            lengths[TOKEN.findall(term)[0]].add(len(term))
        self._lengths = {first: sorted(each, reverse=True) for first, each in lengths.items()}

    def find(self, text: str) -> Iterator[Required]:
        """Find the terms of a text, in order. None lies within another one."""
        end = 0
        for token in TOKEN.finditer(text) if self._terms else ():
            start = token.start()
            term = self._at(text, start, token[0])
            if term and start + len(term) > end:
                end = start + len(term)
                yield Required(start, end, term)

    def _at(self, text: str, start: int, first: str) -> str | None:
        for length in self._lengths.get(first, ()):
            end = start + length
            if end <= len(text) and text[start:end] in self._terms and not is_within_word(text, end):
                return text[start:end]
        return None


def is_within_word(text: str, position: int) -> bool:
    """Whether the characters on both sides of a position belong to one word."""
    return re.match(LETTER * 2, text[position - 1 : position + 1]) is not None


@lru_cache(maxsize=8)
def indexed(terms: frozenset[str]) -> Terms:
    return Terms(terms)


def must_survive(text: str, terms: Collection[str]) -> list[Required]:
    """Return what must appear in an output for this text: in order, and the longer one of two that overlap.

    terms: Texts of the user. Thousands of them cost least as a frozenset.
    """
    found = [exact_span(text, *match.span()) for pattern in KINDS.values() for match in pattern.finditer(text)]
    found += [Required(*match.span(), match[0], is_quantity=True) for match in QUANTITY.finditer(text)]
    found += indexed(frozenset(terms)).find(text)
    taken: list[Required] = []
    for span in sorted(found, key=lambda each: each.start - each.end):
        i = bisect_left(taken, span)
        if (i == 0 or taken[i - 1].end <= span.start) and (i == len(taken) or span.end <= taken[i].start):
            taken.insert(i, span)
    return taken


def exact_span(text: str, start: int, end: int) -> Required:
    """Return a span; if it is a URL, without the punctuation that ends a sentence or closes brackets around it."""
    if text.startswith(URL_STARTS, start):
        count = Counter(text[start:end])
        while (last := text[end - 1]) in ENDS_SENTENCE or count[last] > count[OPENING.get(last, last)]:
            count[last] -= 1
            end -= 1
    return Required(start, end, text[start:end])


def lost(spans: Sequence[Required], output: str) -> list[Required]:
    """Return the spans that an output lacks, in order. Two in the source need two in the output.

    A quantity needs its number, with any separators of digits, and its unit or a word in place of it.
    """
    exact = Terms(span.text for span in spans if not span.is_quantity)
    left: Counter[Key] = Counter(span.text for span in exact.find(output))
    left.update(quantity(match) for match in IN_OUTPUT.finditer(output))
    return [span for span in spans if not take(span, left)]


def take(span: Required, left: Counter[Key]) -> bool:
    """Remove a span from what is left of an output. Returns whether it was there."""
    keys: list[Key] = [span.text.strip()]
    if span.is_quantity and (match := QUANTITY.fullmatch(span.text)):
        number, unit = quantity(match)
        keys = [(number, unit), (number, None)]
    key = next((key for key in keys if left[key] > 0), None)
    if key is not None:
        left[key] -= 1
    return key is not None or keys == [""]


def quantity(match: re.Match[str]) -> tuple[str, str | None]:
    """Return the number of a match of `IN_OUTPUT`, spelled the same for all languages, and its unit if not a word."""
    *groups, last = re.split(r"\D", match["number"] or match["amount"])
    number = "".join(groups) + ("." if groups and len(last) != 3 else "") + last
    return "".join(str(unicodedata.digit(each, each)) for each in number), match["after"] or match["before"]
