"""Finds what must appear in an output, and what of it was lost: marks of code, quantities, numbers, and given terms."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from .marks import ACCESS_KEY, ANY_NUMBER, ENDS_ANYHOW, ESCAPE, IN_OUTPUT, KINDS, LETTER, QUANTITY

TOKEN = re.compile(rf"\\{ESCAPE}|{ACCESS_KEY}|{LETTER}+|\S")
ENDS_SENTENCE = ".,;:!?'\u2019\u2026*"
SIGN = re.compile(r"[^\w\s\u00b5\u03bc/]|\u03a9")
OPENING = {")": "(", "]": "[", "}": "{"}

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

    All are looked for together (Aho and Corasick, 1975), so the time depends only on the lengths of terms and text.
    """

    def __init__(self, terms: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]  # of each state: the state after a word, or after the space before one
        self._size = [0]  # characters of the longest term that ends in a state
        for term in {term.strip() for term in terms} - {""}:
            state = 0
            for symbol in islice(symbols(term), 1, None):
                state = self._next[state].setdefault(symbol, len(self._next))
                if state == len(self._next):
                    self._next.append({})
                    self._size.append(0)
            self._size[state] = len(term)
        self._shorter = [0] * len(self._next)  # the longest other state that ends with the same symbols
        states = [*self._next[0].values()]
        for state in states:
            self._size[state] = self._size[state] or self._size[self._shorter[state]]
            for symbol, after in self._next[state].items():
                self._shorter[after] = self._after(self._shorter[state], symbol)
                states.append(after)

    def find(self, text: str) -> Iterable[Required]:
        """Find the terms of a text, in order. None lies within another one."""
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
            state = self._shorter[state]
        return self._next[state].get(symbol, 0)


def symbols(text: str) -> Iterator[str]:
    """Yield the white space before each word of a text, which may be empty, and the word."""
    end = 0
    for token in TOKEN.finditer(text):
        yield from (text[end : token.start()], token[0])
        end = token.end()


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
    characters = {*text}
    found = [
        exact_span(kind, text, *match.span())
        for kind, (needed, pattern) in KINDS.items()
        if not needed or needed & characters
        for match in pattern.finditer(text)
    ]
    found += [Required(*match.span(), match[0], is_quantity=True) for match in QUANTITY.finditer(text)]
    found += indexed(frozenset(terms)).find(text)
    taken: list[Required] = []
    for span in sorted(found, key=lambda each: each.start - each.end):
        i = bisect_left(taken, span)
        if (i == 0 or taken[i - 1].end <= span.start) and (i == len(taken) or span.end <= taken[i].start):
            taken.insert(i, span)
    return taken


def exact_span(kind: str, text: str, start: int, end: int) -> Required:
    """Return a span; if it may end with any character, without punctuation of the sentence and brackets around it."""
    if kind in ENDS_ANYHOW:
        count = Counter(text[start:end])
        while (last := text[end - 1]) in ENDS_SENTENCE or count[last] > count[OPENING.get(last, last)]:
            count[last] -= 1
            end -= 1
    return Required(start, end, text[start:end])


def lost(spans: Sequence[Required], output: str) -> list[Required]:
    """Return the spans that an output lacks or has too often, in order. Two in the source need two in the output.

    A quantity needs its number, with any separators of digits, and its unit or a word in place of it.
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
    return value(match["number"] or match["amount"]), match["after"] or match["before"]


def value(number: str) -> str:
    """Return a number without separators of thousands, and with a point before its decimals."""
    *groups, last = re.split(r"\D", in_ascii(number))
    return "".join(groups) + ("." if groups and len(last) != 3 else "") + last


def in_ascii(text: str) -> str:
    return re.sub(r"\d", lambda digit: str(unicodedata.digit(digit[0])), text)


def lost_numbers(source: str, output: str) -> list[str]:
    """Return the numbers that an output lacks, in order. A date or a time may be written with other separators."""
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
    """Return the signs of units, such as "€", "%" or "°", that an output lacks. A word may stand in their place."""
    left = Counter(output)
    found = []
    for match in QUANTITY.finditer(source):
        for sign in SIGN.findall(match["after"] or match["before"]):
            left[sign] -= 1
            if left[sign] < 0:
                found.append(sign)
    return found
