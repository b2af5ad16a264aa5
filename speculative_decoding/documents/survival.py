"""Finds the parts of a text that must survive in its output (code, quantities, numbers, terms), and which are lost."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from .code_patterns import (
    ACCESS_KEY,
    ANY_NUMBER,
    CODE_PATTERNS,
    ESCAPE,
    IN_OUTPUT,
    LETTER,
    MAY_END_WITH_PUNCTUATION,
    QUANTITY,
)

TOKEN = re.compile(rf"\\{ESCAPE}|{ACCESS_KEY}|{LETTER}+|\S")
ENDS_SENTENCE = ".,;:!?'\u2019\u2026*"
SIGN = re.compile(r"[^\w\s\u00b5\u03bc/]|\u03a9")
DOTS = re.compile(r"\.{3,}")
OPENING = {")": "(", "]": "[", "}": "{"}

Key = str | tuple[str, str | None]  # the text of a span, or a number and its unit


class Required(NamedTuple):
    """A part of a text that must appear in the output.

    Args:
        start, end: The part's range in the text, in characters.
        text: The characters in this range.
        is_quantity: Whether the number and unit may be written differently in the output: "1,000.5 GB" as "1.000,5 GB".
    """

    start: int
    end: int
    text: str
    is_quantity: bool = False


class Terms:
    """Finds terms in a text as whole words, case-sensitively. Longer terms take precedence.

    All terms are searched for at once (Aho and Corasick, 1975), so the time depends only on the total length of the
    terms and the length of the text.
    """

    def __init__(self, terms: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]  # for each state: symbol (see `symbols`) -> next state
        self._size = [0]  # for each state: length of the longest term that ends there
        for term in {term.strip() for term in terms} - {""}:
            state = 0
            for symbol in islice(symbols(term), 1, None):
                state = self._next[state].setdefault(symbol, len(self._next))
                if state == len(self._next):
                    self._next.append({})
                    self._size.append(0)
            self._size[state] = len(term)
        self._fallback = [0] * len(self._next)  # failure links: the longest proper suffix that is a state
        states = [*self._next[0].values()]
        for state in states:
            self._size[state] = self._size[state] or self._size[self._fallback[state]]
            for symbol, after in self._next[state].items():
                self._fallback[after] = self._after(self._fallback[state], symbol)
                states.append(after)

    def find(self, text: str) -> Iterable[Required]:
        """Return the terms in a text, in order. No term lies within another."""
        found: list[Required] = []
        state = end = 0
        for symbol in symbols(text) if len(self._next) > 1 else ():
            state = self._after(state, symbol)
            end += len(symbol)
            if size := self._size[state]:
                while found and found[-1].start >= end - size:
                    found.pop()
                found.append(Required(end - size, end, text[end - size : end]))
        return found

    def _after(self, state: int, symbol: str) -> int:
        while state and symbol not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(symbol, 0)


def symbols(text: str) -> Iterator[str]:
    """Yield the white space before each word of a text, which may be empty, and the word itself."""
    end = 0
    for token in TOKEN.finditer(text):
        yield from (text[end : token.start()], token[0])
        end = token.end()


def is_within_word(text: str, position: int) -> bool:
    """Return whether the characters on both sides of a position belong to one word."""
    return re.match(LETTER * 2, text[position - 1 : position + 1]) is not None


@lru_cache(maxsize=8)
def indexed(terms: frozenset[str]) -> Terms:
    return Terms(terms)


def must_survive(text: str, terms: Collection[str]) -> list[Required]:
    """Return the parts of a text that must appear in its output, in order. If two overlap, the longer one is kept.

    terms: Terms that the user requires. Pass many terms as a frozenset, because its hash is cached.
    """
    characters = {*text}
    found = [
        exact_span(name, text, *match.span())
        for name, (needed, pattern) in CODE_PATTERNS.items()
        if not needed or needed & characters
        for match in pattern.finditer(text)
    ]
    found = [each for each in found if each.text]  # a match may consist only of the sentence's punctuation
    found += [Required(*match.span(), match[0], is_quantity=True) for match in QUANTITY.finditer(text)]
    found += indexed(frozenset(terms)).find(text)
    taken: list[Required] = []
    for span in sorted(found, key=lambda each: each.start - each.end):
        i = bisect_left(taken, span)
        if (i == 0 or taken[i - 1].end <= span.start) and (i == len(taken) or span.end <= taken[i].start):
            taken.insert(i, span)
    return taken


def exact_span(name: str, text: str, start: int, end: int) -> Required:
    """Return a pattern's match, without the sentence's punctuation or unbalanced brackets at its end."""
    if name in MAY_END_WITH_PUNCTUATION:
        count = Counter(text[start:end])
        while start < end:
            last = text[end - 1]
            if last not in ENDS_SENTENCE and count[last] <= count[OPENING.get(last, last)]:
                break
            count[last] -= 1
            end -= 1
    return Required(start, end, text[start:end])


def lost(spans: Sequence[Required], output: str) -> list[Required]:
    """Return the spans that an output lacks or repeats too often, in order. Equal spans are counted.

    The output must contain the number of a quantity, with any digit separators, and its unit or a word in its place.
    """
    if not spans:
        return []
    terms = Terms(span.text for span in spans if not span.is_quantity)
    marked = texts_of(must_survive(output, ()))
    left: Counter[Key] = Counter(span.text for span in terms.find(output))
    left |= marked
    left.update(quantity(match) for match in IN_OUTPUT.finditer(output))
    missing = {span for span in spans if not take(span, left)}
    too_many = marked - texts_of(spans)
    return [span for span in spans if span in missing or (span.text in too_many and len(span.text) > 1)]


def texts_of(spans: Iterable[Required]) -> Counter[Key]:
    return Counter(span.text for span in spans if not span.is_quantity)


def take(span: Required, left: Counter[Key]) -> bool:
    """Remove a span from the output's remaining spans, and return whether it was among them."""
    keys: list[Key] = [span.text.strip()]
    if span.is_quantity and (match := QUANTITY.fullmatch(span.text)):
        number, unit = quantity(match)
        keys = [(number, unit), (number, None)]
    key = next((key for key in keys if left[key] > 0), None)
    if key is not None:
        left[key] -= 1
    return key is not None or keys == [""]


def quantity(match: re.Match[str]) -> tuple[str, str | None]:
    """Return the normalized number of a match of `IN_OUTPUT`, and its unit, or None if a word replaces the unit."""
    return value(match["number"] or match["amount"]), match["after"] or match["before"]


def value(number: str) -> str:
    """Return a number without thousands separators, and with a decimal point."""
    *groups, last = re.split(r"\D", in_ascii(number))
    return "".join(groups) + ("." if groups and len(last) != 3 else "") + last


def in_ascii(text: str) -> str:
    return re.sub(r"\d", lambda digit: str(unicodedata.digit(digit[0])), text)


def lost_numbers(source: str, output: str) -> list[str]:
    """Return the numbers that an output lacks, in order. Dates and times may be written with other separators."""
    left: defaultdict[str, list[str]] = defaultdict(list)
    for match in ANY_NUMBER.finditer(output):
        left[value(match[0])].append(match[0])
    missing = []
    for match in ANY_NUMBER.finditer(source):
        if same := left[value(match[0])]:
            same.pop()
        else:
            missing.append(match[0])
    groups = Counter(group for numbers in left.values() for number in numbers for group in digit_groups(number))
    found = []
    for number in missing:
        own = Counter(digit_groups(number))
        if own <= groups:
            groups -= own
        else:
            found.append(number)
    return found


def digit_groups(number: str) -> list[int]:
    return [int(group) for group in re.findall(r"\d+", number)]


def lost_signs(source: str, output: str) -> list[str]:
    """Return the unit signs, such as "€", "%" or "°", that an output lacks. Words may have replaced them."""
    left = Counter(output)
    found = []
    for match in QUANTITY.finditer(source):
        for sign in SIGN.findall(match["after"] or match["before"]):
            left[sign] -= 1
            if left[sign] < 0:
                found.append(sign)
    return found


def lost_dots(source: str, output: str) -> list[str]:
    """Return each "..." that an output lacks. "\u2026" may have replaced it, unless the source contains both."""
    single = output.count("\u2026") - source.count("\u2026")
    left = len(DOTS.findall(output)) + max(single, 0)
    return DOTS.findall(source)[left:]
