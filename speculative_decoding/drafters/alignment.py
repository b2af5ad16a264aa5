"""Aligns an output with a source that it mostly copies, to find the next source token to copy.

This is input-guided drafting (Sun et al. 2021, "Instantaneous Grammatical Error Correction"; Ge et al. 2022, arXiv
2205.10350). The module knows token ids and pieces, but no model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .suffix_index import SuffixIndex


@dataclass(frozen=True)
class Pieces:
    """Facts about a vocabulary's pieces that alignment uses. Without them, ids are compared as they are.

    Args:
        classes: Maps an id to the class of all pieces that differ only in case or in a leading space. The same word is
            a different piece at the start of a span or of a sentence. An id that is missing is its own class.
        begins_word: Ids of pieces with a leading space.
        ends_prefix: Ids of pieces that end with a colon.
    """

    classes: Mapping[int, int] = field(default_factory=dict)
    begins_word: frozenset[int] = frozenset()
    ends_prefix: frozenset[int] = frozenset()

    @classmethod
    def from_vocabulary(cls, pieces: Mapping[int, str]) -> Pieces:
        """Build from `tokenizer.vocabulary.pieces`.

        The last result is kept: it takes some milliseconds, which every call without a session would repeat.
        """
        global _last_pieces
        if not pieces:
            return cls()
        if _last_pieces is not None and _last_pieces[0] is pieces:
            return _last_pieces[1]
        spaces = ("▁", "Ġ")  # how SentencePiece and byte-level BPE write a leading space
        first_id: dict[str, int] = {}
        classes = {}
        for token, piece in pieces.items():
            bare = piece[1:] if piece.startswith(spaces) else piece
            same = first_id.setdefault((bare or piece).casefold(), token)
            if same != token:
                classes[token] = same
        begins_word = frozenset(token for token, piece in pieces.items() if piece.startswith(spaces))
        ends_prefix = frozenset(token for token, piece in pieces.items() if piece.endswith(":"))
        _last_pieces = pieces, cls(classes, begins_word, ends_prefix)
        return _last_pieces[1]


_last_pieces: tuple[Mapping[int, str], Pieces] | None = None


class Alignment:
    """Follows one output through its source: `append` each output token, then `find` the next source position.

    Args:
        source: Ids of the source.
        pieces: See `Pieces`.
        max_size: The most output tokens that are looked up in the source.
    """

    def __init__(self, source: Sequence[int], pieces: Pieces, max_size: int) -> None:
        self._source = source
        self._pieces = pieces
        self._index = SuffixIndex(max_size, [pieces.classes.get(token, token) for token in source])
        self._output: list[int] = []  # classes of the output tokens
        # The source position that follows the output; at first the one after the task prefix ("grammar: "), which ends
        # with a colon among the first tokens.
        prefix = source[:12]
        self._expected = next((i + 1 for i, token in enumerate(prefix) if token in pieces.ends_prefix), 0)
        self._mismatches = 0  # output tokens since the last one that agreed with the source

    def append(self, token: int) -> None:
        """Follow one more output token; the start token is not part of the output."""
        token_class = self._pieces.classes.get(token, token)
        if self._index.tokens[self._expected : self._expected + 1] == [token_class]:
            self._expected += 1
            self._mismatches = 0
        else:
            self._mismatches += 1
        self._output.append(token_class)

    def find(self) -> tuple[int, int] | None:
        """Return the source position to copy from, and how many of the last output tokens precede it in the source.

        The longest match wins, and among equally long ones the first that the output has not passed. Without a match
        the length is 0, and the position is the expected one, or the next word after a single mismatch. Returns
        None after more mismatches.
        """
        found = self._index.find(self._output)
        if found:
            positions = found[-1]
            ahead = bisect_left(positions, self._expected)
            self._expected = positions[min(ahead, len(positions) - 1)]
            self._mismatches = 0
            return self._expected, len(found)
        if self._mismatches == 0:
            return self._expected, 0
        if self._mismatches == 1:
            return self._after_expected_word(), 0
        return None

    def _after_expected_word(self) -> int:
        """The position after the word (without pieces: after the token) at the expected position."""
        position = self._expected + 1
        word_starts = self._pieces.begins_word
        while word_starts and position < len(self._source) and self._source[position] not in word_starts:
            position += 1
        return position
