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


@dataclass(frozen=True)
class Pieces:
    """What is compared besides the ids of a vocabulary's tokens. Without pieces, ids are compared as they are.

    classes: id -> one id for all pieces that differ only in a leading space or in case: the same word is another piece
        at the start of a span, or of a sentence.
    begins_word: the ids of pieces with a leading space.
    ends_prefix: the ids of pieces that end with a colon.
    """

    classes: Mapping[int, int] = field(default_factory=dict)
    begins_word: frozenset[int] = frozenset()
    ends_prefix: frozenset[int] = frozenset()

    @classmethod
    def from_vocabulary(cls, pieces: Mapping[int, str]) -> Pieces:
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


class Alignment:
    """Follows the output of one request through its source: `read` every output token (the start token is none), then
    `place` says where the output goes on.

    max_size: the longest context that is looked up.
    """

    def __init__(self, source: Sequence[int], pieces: Pieces, max_size: int) -> None:
        self._source, self._pieces = source, pieces
        self._index = SuffixIndex(max_size, [pieces.classes.get(token, token) for token in source])
        self._read: list[int] = []  # classes of the output tokens
        # Where the source goes on if the output follows it: at first, behind the task prefix.
        self._expected = next((i + 1 for i, token in enumerate(source[:PREFIX]) if token in pieces.ends_prefix), 0)
        self._mismatches = 0  # output tokens since the output last followed it

    def read(self, token: int) -> None:
        """One more output token."""
        same = self._pieces.classes.get(token, token)
        if self._index.tokens[self._expected : self._expected + 1] == [same]:
            self._expected += 1
            self._mismatches = 0
        else:
            self._mismatches += 1
        self._read.append(same)

    def place(self) -> tuple[int, int] | None:
        """(where the source probably goes on, how many output tokens stand in front of it there as well).

        The longest match; of equal ones the first that lies ahead. Without a match, length 0: the expected place, or
        behind one replaced word. None if there is nothing to go by.
        """
        found = self._index.find(self._read)
        if found:
            ends = found[-1]
            self._expected = ends[min(bisect_left(ends, self._expected), len(ends) - 1)]
            self._mismatches = 0
            return self._expected, len(found)
        if self._mismatches == 0:
            return self._expected, 0
        return (self._behind_word(), 0) if self._mismatches == 1 else None

    def _behind_word(self) -> int:
        """Behind the word (without pieces: the token) at the expected place."""
        starts, source, place = self._pieces.begins_word, self._source, self._expected + 1
        while starts and place < len(source) and source[place] not in starts:
            place += 1
        return place
