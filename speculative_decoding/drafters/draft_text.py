"""Follows an output through a given text that it may repeat, such as an earlier version of the output.

OpenAI calls such a text a prediction ("predicted outputs"). The text may differ from the output in any way. After a
difference, the place in the text is found again by the last words of the output.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property

from .alignment import SPACES
from .suffix_index import SuffixIndex

MAX_CONTEXT = 8  # tokens of the output that are looked up in the text
MAX_SKIPPED = 3  # words of the text that are passed over before a match is required


class DraftText:
    """A text, prepared for any number of requests.

    Args:
        ids: The text as output ids, with an end token.
        pieces: The vocabulary's pieces by id, with which words compare regardless of case and a leading space.
        origin: `TEXT` for a text that the request gives, or another kind of draft.
    """

    def __init__(self, ids: Sequence[int], pieces: Mapping[int, str], origin: str) -> None:
        self.ids = list(ids)
        self.origin = origin
        self._pieces = pieces
        self._classes: dict[str, int] = {}  # the first token seen of each word

    @cached_property
    def index(self) -> SuffixIndex:
        return SuffixIndex(MAX_CONTEXT, [self.class_of(token) for token in self.ids])

    def class_of(self, token: int) -> int:
        """Return the first token seen that is the same word, regardless of case and a leading space."""
        piece = self._pieces.get(token)
        if piece is None:
            return token
        bare = piece[1:] if piece[:1] in SPACES else piece
        return self._classes.setdefault((bare or piece).casefold(), token)

    def next_word(self, position: int) -> int:
        """Return the position after the word at `position`; without pieces, after the token."""
        position += 1
        while position < len(self.ids) and not self._pieces.get(self.ids[position], SPACES[0]).startswith(SPACES):
            position += 1
        return position


class TextFollower:
    """Follows one output through a text: `append` each output token, then `find` the place to continue from."""

    def __init__(self, text: DraftText) -> None:
        self.text = text
        self._expected = 0  # the position in the text that comes next
        self._agreed = 0  # output tokens in a row that were the expected ones
        self._missed = 0  # output tokens since the last one that agreed
        self._output: list[int] = []  # the classes of the last output tokens

    def append(self, token: int) -> None:
        """Add an output token. The start token is not part of the output."""
        tokens = self.text.index.tokens
        token_class = self.text.class_of(token)
        self._output = [*self._output[1 - MAX_CONTEXT :], token_class]
        if tokens[self._expected : self._expected + 1] == [token_class]:
            self._expected += 1
            self._agreed += 1
            self._missed = 0
            return
        self._agreed = 0
        self._missed += 1
        found = self.text.index.find(self._output)
        if not found:
            return
        ends = found[-1]
        ahead = bisect_left(ends, self._expected)
        nearest = min(ends[max(ahead - 1, 0) : ahead + 1], key=lambda end: abs(end - self._expected))
        if len(found) >= 2 or -2 <= nearest - self._expected <= 10:
            self._expected = nearest
            self._agreed = len(found)
            self._missed = 0

    def find(self) -> tuple[int, int] | None:
        """Return the position to continue from, and how many output tokens agree with the text before it."""
        if not self._missed:
            return self._expected, self._agreed
        if self._missed > MAX_SKIPPED:
            return None
        return self.text.next_word(self._expected), -1
