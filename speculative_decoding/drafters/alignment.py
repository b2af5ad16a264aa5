"""Where in its source an output stands that copies most of it (input-guided drafting: Sun et al. 2021, "Instantaneous
Grammatical Error Correction"; Ge et al. 2022, arXiv 2205.10350). Knows ids and pieces; no model, no draft length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .suffix_index import SuffixIndex

SPACES = ("▁", "Ġ")  # how SentencePiece and byte-level BPE write a space in front of a piece
PREFIX = 12  # a colon among this many first tokens ends a task prefix ("grammar: ")
BEHIND, AHEAD = 4, 8  # tokens around the expected place within which a single equal token is taken for it
ANCHOR = 2  # tokens in step that make the place where they end worth resuming from


@dataclass(frozen=True)
class Pieces:
    """What an aligner wants to know of a vocabulary. Without one, ids are compared as they are.

    classes: id -> one id for all pieces that differ only in a leading space or in case: the same word is another piece
        at the start of a span, or of a sentence.
    begins_word: the ids of pieces with a leading space.
    ends_prefix: the ids of pieces that end with a colon.
    """

    classes: Mapping[int, int] = field(default_factory=dict)
    begins_word: frozenset[int] = frozenset()
    ends_prefix: frozenset[int] = frozenset()

    @classmethod
    def of(cls, pieces: Mapping[int, str]) -> Pieces:
        """From `tokenizer.vocabulary.pieces`."""
        first: dict[str, int] = {}
        classes = {}
        for index, piece in pieces.items():
            bare = piece[1:] if piece.startswith(SPACES) else piece
            same = first.setdefault((bare or piece).casefold(), index)
            if same != index:
                classes[index] = same
        return cls(
            classes,
            frozenset(index for index, piece in pieces.items() if piece.startswith(SPACES)),
            frozenset(index for index, piece in pieces.items() if piece.endswith(":")),
        )


@dataclass(frozen=True)
class Place:
    """A guess that the output goes on as the source does from `start`. `length` tokens speak for it; `origin` says how
    it was found: "opening", "near" the expected place, "far" from it, or "resumed" behind what the target replaced.
    """

    start: int
    length: int
    origin: str


class Alignment:
    """One request. `read` every output token (the start token is none); `place` says where the output stands.

    max_size: the longest context that is looked up.
    min_size: the shortest that is believed far from where the output was expected; near it one token is enough.
    """

    def __init__(self, source: Sequence[int], pieces: Pieces, max_size: int, min_size: int) -> None:
        self._pieces, self._min_size = pieces, min_size
        self._source = source
        classes = pieces.classes
        self._index = SuffixIndex(max_size, [classes.get(token, token) for token in source])
        self._read: list[int] = []  # classes of the output tokens
        opening = (i + 1 for i, token in enumerate(source[:PREFIX]) if token in pieces.ends_prefix)
        self._expected = next(opening, 0)  # where the source goes on if the output follows it
        self._in_step = 0  # tokens since the output began to follow it
        self._strayed: list[int] = []  # output tokens since it last did
        self._anchored = True  # whether the expected place is one where the output has really been

    def read(self, token: int) -> None:
        same = self._pieces.classes.get(token, token)
        known = self._index.tokens
        if self._expected < len(known) and known[self._expected] == same:
            self._expected += 1
            self._in_step += 1
            self._strayed.clear()
        else:
            if not self._strayed:
                self._anchored = self._in_step >= ANCHOR or not self._read
            self._in_step = 0
            self._strayed.append(token)
        self._read.append(same)

    def place(self) -> Place | None:
        """The best guess; None if there is nothing to go by. Moves the expected place to where a match was found."""
        if not self._read:
            return Place(self._expected, 0, "opening")
        if best := self._longest_match():
            if best.start != self._expected or self._strayed:
                self._expected, self._in_step = best.start, best.length
                self._strayed.clear()
            return best
        if len(self._strayed) == 1 and self._anchored:
            return Place(self._behind_replaced(self._strayed[0]), 0, "resumed")
        return None

    def _longest_match(self) -> Place | None:
        """The longest suffix of the output in the source, there the place nearest to the expected one."""
        found, expected = self._index.find(self._read), self._expected
        anchored = self._anchored or not self._strayed
        for size in range(len(found), 0, -1):
            end = nearest(found[size - 1], expected)
            if anchored and expected - BEHIND <= end < expected + AHEAD:
                return Place(end, max(size, self._in_step) if end == expected else size, "near")
            if size >= self._min_size:
                return Place(end, size, "far")
        return None

    def _behind_replaced(self, token: int) -> int:
        """Where the source goes on behind the word (without pieces: the token) that `token` was written for. A token
        that only prolongs the word before it replaces nothing.
        """
        starts, source, place = self._pieces.begins_word, self._source, self._expected
        if not starts or token in starts:
            place += 1
        while starts and place < len(source) and source[place] not in starts:
            place += 1
        return place


def nearest(ends: Sequence[int], expected: int) -> int:
    """The one of the rising `ends` closest to `expected`; those in front of it count as twice as far."""
    i = bisect_left(ends, expected)
    return min(ends[max(i - 1, 0) : i + 1], key=lambda end: end - expected if end >= expected else 2 * (expected - end))
