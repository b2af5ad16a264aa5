"""Findings: passages of a decoded document that a reader should check."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import one_line

SHOWN = 40  # characters of the source that a finding shows
MAX_LINES = 20  # maximum lines for each category in a report

MARKUP = "markup"  # inline markup that was dropped, because its place in the output was not found
LOOP = "loop"  # the output repeats itself
LENGTH = "length"  # the output is unusually short or long
CUT = "cut"  # the output reached the token limit
SPLIT = "split"  # the piece was longer than the model allows
FAILED = "failed"  # the piece could not be decoded, and was copied
COPIED = "copied"  # text that was copied, because it is malformed or is not natural language
UNTRANSLATED = "untranslated"  # an entry of a bilingual document that was left without a translation
PARTS = "parts"  # the output was assembled from outputs for parts, because the first output lacked a required part
ANCHOR = "anchor"  # a link to a heading of the same document, whose text and anchor change
MATCH = "match"  # an exact match was not used, because its target lacks something that an output must contain
LOST = "lost"  # the output lacks a number or a character that the source contains


class Finding(NamedTuple):
    """A passage to check.

    Args:
        line: The line in the document, counted from 1.
        kind: The category: one of the constants above.
        what: A short description.
    """

    line: int
    kind: str
    what: str


def report(findings: Iterable[Finding], name: str) -> list[str]:
    """Return lines for a terminal, such as "README.md:12: markup: ** ... **", grouped by category.

    Consecutive findings of the same category on the same line of the document are joined, without duplicates. After
    twenty lines in a category, only the number of remaining findings is shown.
    """
    shown: defaultdict[str, list[tuple[int, list[str]]]] = defaultdict(list)
    more = Counter[str]()
    for line, category, what in findings:
        same = shown[category]
        if same and same[-1][0] == line:
            same[-1][1].append(what)
        elif len(same) < MAX_LINES:
            same.append((line, [what]))
        else:
            more[category] += 1
    lines = []
    for category, same in shown.items():
        lines += [one_line(f"{name}:{line}: {category}: {'; '.join(dict.fromkeys(whats))}") for line, whats in same]
        lines += [f"{name}: {category}: {more[category]} more; --stats-json lists all"] if more[category] else []
    return lines
