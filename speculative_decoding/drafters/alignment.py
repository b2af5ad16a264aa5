"""Aligns an output with a source that it mostly copies, to find the next source token to copy.

This is input-guided drafting (Sun et al. 2021, "Instantaneous Grammatical Error Correction"; Ge et al. 2022, arXiv
2205.10350). This module works on token ids and pieces, without a model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from .suffix_index import SuffixIndex

SPACES = ("▁", "Ġ")  # how SentencePiece and byte-level BPE write a leading space


class Alignment:
    """Follows one output through its source: `append` each output token, then `find` the next source position.

    Args:
        source: Ids of the source.
        pieces: The vocabulary's pieces by id. Without them, the ids themselves are compared.
        max_size: The maximum number of output tokens to look up in the source.
    """

    def __init__(self, source: Sequence[int], pieces: Mapping[int, str], max_size: int) -> None:
        self._source = source
        self._pieces = pieces
        self._classes: dict[str, int] = {}  # see `_class_of`
        self._index = SuffixIndex(max_size, map(self._class_of, source))
        self._output: list[int] = []  # classes of the output tokens
        # The source position that is expected next. It starts after the task prefix ("grammar: "), if one of the first
        # tokens ends with a colon.
        first_pieces = [pieces.get(token, "") for token in source[:12]]
        self._expected = next((i + 1 for i, piece in enumerate(first_pieces) if piece.endswith(":")), 0)
        self._mismatches = 0  # output tokens since the last one that agreed with the source

    def append(self, token: int) -> None:
        """Add an output token. The start token is not part of the output."""
        token_class = self._class_of(token)
        if self._index.tokens[self._expected : self._expected + 1] == [token_class]:
            self._expected += 1
            self._mismatches = 0
        else:
            self._mismatches += 1
        self._output.append(token_class)

    def find(self) -> tuple[int, int] | None:
        """Return the source position to copy from, and how many of the last output tokens precede it in the source.

        The longest match wins; among equally long matches, the first one that the output has not passed. Without a
        match, the length is 0, and the position is the expected one or, after a single mismatch, the start of the next
        word. After more mismatches, the result is None.
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

    def _class_of(self, token: int) -> int:
        """Return the first token seen that is the same word, regardless of case and a leading space."""
        piece = self._pieces.get(token)
        if piece is None:
            return token
        bare = piece[1:] if piece[:1] in SPACES else piece
        return self._classes.setdefault((bare or piece).casefold(), token)

    def _after_expected_word(self) -> int:
        """Return the position after the word at the expected position; without pieces, after the token."""
        pieces, source = self._pieces, self._source
        position = self._expected + 1
        while pieces and position < len(source) and not pieces.get(source[position], "").startswith(SPACES):
            position += 1
        return position
