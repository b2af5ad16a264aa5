"""What a reader should check in a decoded document."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import one_line

SHOWN = 40  # characters of a source
MAX_LINES = 20  # of each kind in a report

MARKUP = "markup"  # inline markup that was dropped, because its place in the output was not found
LOOP = "loop"  # the output repeats itself
LENGTH = "length"  # the output is unusually short or long
CUT = "cut"  # the output reached the token limit
SPLIT = "split"  # the piece was longer than the model allows
FAILED = "failed"  # the piece could not be decoded, and was copied
COPIED = "copied"  # not understood, or no language, such as code or base64, so it was not decoded
PARTS = "parts"  # the output was put together from the outputs for parts, because something was lost
LOST = "lost"  # the output lacks a number or a character of the source


class Finding(NamedTuple):
    """Something to check. line: of the document, from 1. kind: one of the constants above. what: in a few words."""

    line: int
    kind: str
    what: str


def report(findings: Iterable[Finding], name: str) -> list[str]:
    """Return lines for a terminal, such as "README.md:12: markup: ** ... **". They are grouped by kind.

    A line has all consecutive findings of one kind on one line of the document, and equal ones only once. After twenty
    lines of a kind, only the number of the other findings follows.
    """
    shown: defaultdict[str, list[tuple[int, list[str]]]] = defaultdict(list)
    more = Counter[str]()
    for line, kind, what in findings:
        of_kind = shown[kind]
        if of_kind and of_kind[-1][0] == line:
            of_kind[-1][1].append(what)
        elif len(of_kind) < MAX_LINES:
            of_kind.append((line, [what]))
        else:
            more[kind] += 1
    lines = []
    for kind, of_kind in shown.items():
        lines += [one_line(f"{name}:{line}: {kind}: {'; '.join(dict.fromkeys(whats))}") for line, whats in of_kind]
        lines += [f"{name}: {kind}: {more[kind]} more, which --stats-json has"] if more[kind] else []
    return lines
