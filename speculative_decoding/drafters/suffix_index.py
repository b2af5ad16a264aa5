"""Finds where in a growing text the last tokens of another text, or of itself, stood before. Knows no models.

A trie of the contexts that end at each position, read backwards; a node is split only when a search passes through it
(the lazy construction of Giegerich, Kurtz, Stoye 2003, for suffixes read the other way). A suffix automaton answers the
same question; this is cheaper to build, because most of a source is never searched for, and it knows every place where
a context stood, not only the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BOUNDARY = -1  # between two texts in one index: no context reaches across it, nothing is continued with it


class _Node:
    """One context: where it ends, and once a search needed them, the contexts that are one token longer."""

    __slots__ = ("ends", "longer")

    def __init__(self, longer: dict[int, _Node] | None = None) -> None:
        self.ends: list[int] = []
        self.longer = longer


class SuffixIndex:
    """All contexts of up to `max_size` tokens in `tokens`, which must only be changed through `extend`.

    Position e ends a context, `tokens[:e]`, if a token follows it; `tokens[e:]` is its continuation.

    Cost: `extend` and each split move a position down one level, and no position goes deeper than `max_size`, so N
    tokens cost O(N · max_size) at worst over all calls, whatever is searched; a search costs O(its result) besides.
    """

    def __init__(self, max_size: int, tokens: Iterable[int] = ()) -> None:
        self.max_size = max_size
        self.tokens: list[int] = []
        self._root = _Node({})
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append `tokens` to the text."""
        ours = self.tokens
        first = max(len(ours), 1)
        ours.extend(tokens)
        for end in range(first, len(ours)):
            if BOUNDARY in (ours[end], ours[end - 1]):
                continue
            children, size = self._root.longer, 0
            while children is not None and size < end:
                size += 1
                child = children.get(ours[end - size])
                if child is None:
                    child = children[ours[end - size]] = _Node()
                child.ends.append(end)
                children = child.longer

    def find(self, text: Sequence[int]) -> list[list[int]]:
        """Where the last tokens of `text` stand: element k - 1 lists, in rising order, all ends of its last k tokens.

        As long as the longest suffix that occurs with a token behind it, `max_size` at most. The lists belong to
        the index.
        """
        found: list[list[int]] = []
        limit, node, tokens = min(self.max_size, len(text)), self._root, self.tokens
        while (size := len(found)) < limit:
            children = self._split(node, size) if node.longer is None else node.longer
            child = children.get(text[-1 - size])
            if child is None:
                break
            found.append(child.ends)
            if len(child.ends) == 1:  # only one place is left: compare there instead of splitting further
                end = child.ends[0]
                while (size := len(found)) < min(limit, end) and tokens[end - 1 - size] == text[-1 - size]:
                    found.append(child.ends)
                break
            node = child
        return found

    def _split(self, node: _Node, size: int) -> dict[int, _Node]:
        """Sort the ends of a context of `size` tokens by the token in front of it."""
        longer = node.longer = {}
        for end in node.ends:
            if end > size:
                longer.setdefault(self.tokens[end - 1 - size], _Node()).ends.append(end)
        return longer
