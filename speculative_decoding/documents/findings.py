"""What a reader should check in a decoded document."""

from __future__ import annotations

from typing import NamedTuple

LOST = "lost"  # something that had to appear unchanged
MARKUP = "markup"  # inline markup that was dropped, because its place in the output was not found
LOOP = "loop"  # the output repeats itself
LENGTH = "length"  # the output is unusually short or long
CUT = "cut"  # the output reached the token limit
SPLIT = "split"  # the piece was longer than the model allows
FAILED = "failed"  # the piece could not be decoded, and was copied


class Finding(NamedTuple):
    """Something to check. line: of the document, from 1. kind: one of the constants above. what: in a few words."""

    line: int
    kind: str
    what: str
