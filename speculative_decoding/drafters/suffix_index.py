"""A growing text, and where in it the last tokens of another text, or of itself, stood before. Knows no models.

A trie of the contexts that end at each position, read backwards, where a node is split only once a search passes
through it (the lazy construction of Giegerich, Kurtz, Stoye 2003, for suffixes read the other way). A suffix automaton
answers the same question; this is cheaper to build, because most of a source is never asked about, and it knows every
place where a context stood, not only the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BOUNDARY = -1  # between two texts in one index: no context reaches across it, nothing is continued with it


class _Node:
    """One context. `older` leads to the contexts one token longer, once somebody has asked for them."""

    __slots__ = ("ends", "older")

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.older: dict[int, _Node] | None = None


class SuffixIndex:
    """Contexts of up to `max_size` tokens. What stands in `tokens` must only be changed through `append` and `extend`.

    Position e ends a context, `tokens[:e]`, if a token follows it; `tokens[e:]` is its continuation.

    Cost: `append` and each split move a position down one level, and no position goes deeper than `max_size`, so N
    tokens cost O(N · max_size) at worst over all calls, whatever is searched; a search costs O(its result) besides.
    """

    def __init__(self, max_size: int, tokens: Iterable[int] = ()) -> None:
        self.max_size = max_size
        self.tokens: list[int] = []
        self._root: dict[int, _Node] = {}
        self.extend(tokens)

    def append(self, token: int) -> None:
        self.extend((token,))

    def extend(self, tokens: Iterable[int]) -> None:
        ours, root = self.tokens, self._root
        end = max(len(ours), 1)
        ours.extend(tokens)
        if len(ours) < 2:
            return
        before = ours[end - 1]
        for token in ours[end:]:
            if token != BOUNDARY and before != BOUNDARY:
                node = root.get(before)
                if node is None:
                    node = root[before] = _Node()
                node.ends.append(end)
                if node.older is not None:
                    self._add_deeper(node, end)
            before = token
            end += 1

    def find(self, text: Sequence[int]) -> list[list[int]]:
        """Where the last tokens of `text` stand: element k - 1 lists, in rising order, all ends of its last k tokens.

        As long as the longest suffix that occurs with a token behind it, `max_size` at most. The lists belong to
        the index.
        """
        found: list[list[int]] = []
        children, limit = self._root, min(self.max_size, len(text))
        while len(found) < limit and (node := children.get(text[-1 - len(found)])) is not None:
            found.append(node.ends)
            if len(node.ends) == 1:  # only one place is left: read on there instead of splitting further
                self._read_back(text, node.ends, found, limit)
                break
            if len(found) == limit:
                break
            children = self._split(node, len(found)) if node.older is None else node.older
        return found

    def _read_back(self, text: Sequence[int], ends: list[int], found: list[list[int]], limit: int) -> None:
        tokens, (end,) = self.tokens, ends
        limit = min(limit, end)
        while (size := len(found)) < limit and tokens[end - 1 - size] == text[-1 - size]:
            found.append(ends)

    def _split(self, node: _Node, size: int) -> dict[int, _Node]:
        """Sort the ends of a context of `size` tokens by the token in front of it."""
        tokens = self.tokens
        older: dict[int, _Node] = {}
        node.older = older
        for end in node.ends:
            if (place := end - 1 - size) >= 0:
                child = older.get(tokens[place])
                if child is None:
                    child = older[tokens[place]] = _Node()
                child.ends.append(end)
        return older

    def _add_deeper(self, node: _Node, end: int) -> None:
        """Enter an end into all contexts of it, longer than `node`'s single token, that have been split off."""
        tokens = self.tokens
        for place in range(end - 2, -1, -1):
            older = node.older
            if older is None:
                return
            child = older.get(tokens[place])
            if child is None:
                child = older[tokens[place]] = _Node()
            child.ends.append(end)
            node = child
