"""Finds what must appear in an output, and what of it was lost: marks of code, quantities, numbers, and given terms."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from .marks import ANY_NUMBER, ENDS_ANYHOW, IN_OUTPUT, KINDS, LETTER, QUANTITY

TOKEN = re.compile(rf"{LETTER}+|\S")
ENDS_SENTENCE = ".,;:!?'\u2019\u2026*"
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
            is_whole = first == "\\" or not is_within_word(text, end)  # the word after an escape follows at once
            if end <= len(text) and text[start:end] in self._terms and is_whole:
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
    return value(match["number"] or match["amount"]), match["after"] or match["before"]


def value(number: str) -> str:
    """Return a number without separators of thousands, and with a point before its decimals."""
    *groups, last = re.split(r"\D", in_ascii(number))
    return "".join(groups) + ("." if groups and len(last) != 3 else "") + last


def in_ascii(text: str) -> str:
    return re.sub(r"\d", lambda digit: str(unicodedata.digit(digit[0])), text)


def lost_numbers(source: str, output: str) -> list[str]:
    """Return the numbers that an output lacks, in order. A date or a time may be written with other separators."""
    left = Counter(value(match[0]) for match in ANY_NUMBER.finditer(output))
    missing = []
    for match in ANY_NUMBER.finditer(source):
        key = value(match[0])
        left[key] -= 1
        if left[key] < 0:
            missing.append(match[0])
    groups = Counter(group for number, count in left.items() for group in parts_of_number(number) * max(count, 0))
    found = []
    for number in missing:
        own = Counter(parts_of_number(number))
        if own <= groups:
            groups -= own
        else:
            found.append(number)
    return found


def parts_of_number(number: str) -> list[str]:
    return [str(int(group)) for group in re.findall(r"\d+", in_ascii(number))]
