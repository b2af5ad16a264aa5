"""Finds earlier occurrences of a text's last tokens in a growing text.

The index is a trie of all contexts, read backwards. A context is split only when a search passes through it. This is
the lazy construction of Giegerich, Kurtz and Stoye (2003), applied to reversed suffixes. A suffix automaton can answer
the same queries, but this trie is cheaper to build, because most of a source is never looked up. The trie also lists
every occurrence of a context, not only the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BOUNDARY = -1  # separates two texts in one index; no context or continuation crosses it


class SuffixIndex:
    """An index of all contexts of up to `max_size` tokens in `tokens`. Only `extend` may change `tokens`.

    A context `tokens[:e]` ends at position e if a token follows it; `tokens[e:]` is its continuation.

    Each step of `extend` or of a split moves a position one level down the trie, and no position goes deeper than
    `max_size`. In the worst case, N tokens therefore take O(N * max_size) time over all calls. In addition, each search
    takes time proportional to the size of its result.
    """

    def __init__(self, max_size: int, tokens: Iterable[int] = ()) -> None:
        self.max_size = max_size
        self.tokens: list[int] = []
        # (size, first end) identifies a context. Its entry is created when a search needs it, and maps each token that
        # occurs before the context to all ends of the context extended by that token.
        self._longer: dict[tuple[int, int], dict[int, list[int]]] = {(0, 0): {}}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append `tokens` to the text."""
        text = self.tokens
        first = max(len(text), 1)
        text.extend(tokens)
        for end in range(first, len(text)):
            if BOUNDARY in (text[end], text[end - 1]):
                continue
            size = first_end = 0
            while size < end and (longer := self._longer.get((size, first_end))) is not None:
                size += 1
                ends = longer.setdefault(text[end - size], [])
                ends.append(end)
                first_end = ends[0]

    def find(self, text: Sequence[int]) -> list[list[int]]:
        """Find the last tokens of `text`. Element k - 1 lists all ends of its last k tokens, in ascending order.

        The list extends to the longest suffix that occurs with a token after it, up to `max_size`. Do not change the
        inner lists, which belong to the index.
        """
        found: list[list[int]] = []
        limit = min(self.max_size, len(text))
        ends = [0]
        tokens = self.tokens
        while (size := len(found)) < limit:
            longer = self._longer.get((size, ends[0]))
            if longer is None:
                longer = self._split(ends, size)
            if text[-1 - size] not in longer:
                break
            ends = longer[text[-1 - size]]
            found.append(ends)
            if len(ends) == 1:  # compare a single occurrence directly instead of splitting further
                end = ends[0]
                while (size := len(found)) < min(limit, end) and tokens[end - 1 - size] == text[-1 - size]:
                    found.append(ends)
                break
        return found

    def _split(self, ends: Sequence[int], size: int) -> dict[int, list[int]]:
        """Group the ends of a context of `size` tokens by the token before it."""
        longer = self._longer[size, ends[0]] = {}
        for end in ends:
            if end > size:
                longer.setdefault(self.tokens[end - 1 - size], []).append(end)
        return longer
