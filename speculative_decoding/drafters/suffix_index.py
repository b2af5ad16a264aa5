"""Finds earlier occurrences of a text's last tokens in a growing text.

The index is a trie of all contexts, read backwards. A node is split only when a search passes through it: the lazy
construction of Giegerich, Kurtz and Stoye (2003), for reversed suffixes. A suffix automaton answers the same question,
but this trie is cheaper to build, because most of a source is never searched for. It also knows every occurrence of a
context, not only the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BOUNDARY = -1  # separates two texts in one index: no context or continuation crosses it


class _Node:
    """One context: the positions where it ends and, once a search needs them, the contexts one token longer."""

    __slots__ = ("ends", "longer")

    def __init__(self, longer: dict[int, _Node] | None = None) -> None:
        self.ends: list[int] = []
        self.longer = longer


class SuffixIndex:
    """All contexts of up to `max_size` tokens in `tokens`. Only `extend` may change `tokens`.

    Position e ends the context `tokens[:e]` if a token follows it; `tokens[e:]` is its continuation.

    `extend` and each split move a position one level down, and no position goes deeper than `max_size`. So N tokens
    cost O(N * max_size) in the worst case over all calls, and a search adds O(its result).
    """

    def __init__(self, max_size: int, tokens: Iterable[int] = ()) -> None:
        self.max_size = max_size
        self.tokens: list[int] = []
        self._root = _Node({})
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append `tokens` to the text."""
        text = self.tokens
        first = max(len(text), 1)
        text.extend(tokens)
        for end in range(first, len(text)):
            if BOUNDARY in (text[end], text[end - 1]):
                continue
            children = self._root.longer
            size = 0
            while children is not None and size < end:
                size += 1
                child = children.get(text[end - size])
                if child is None:
                    child = children[text[end - size]] = _Node()
                child.ends.append(end)
                children = child.longer

    def find(self, text: Sequence[int]) -> list[list[int]]:
        """Find the last tokens of `text`: element k - 1 lists all ends of its last k tokens, in ascending order.

        The list covers the longest suffix that occurs with a token after it, up to `max_size`. Do not change the inner
        lists; they belong to the index.
        """
        found: list[list[int]] = []
        limit = min(self.max_size, len(text))
        node = self._root
        tokens = self.tokens
        while (size := len(found)) < limit:
            children = self._split(node, size) if node.longer is None else node.longer
            child = children.get(text[-1 - size])
            if child is None:
                break
            found.append(child.ends)
            if len(child.ends) == 1:  # a single occurrence is compared directly instead of splitting further
                end = child.ends[0]
                while (size := len(found)) < min(limit, end) and tokens[end - 1 - size] == text[-1 - size]:
                    found.append(child.ends)
                break
            node = child
        return found

    def _split(self, node: _Node, size: int) -> dict[int, _Node]:
        """Group the ends of a context of `size` tokens by the token before it."""
        longer = node.longer = {}
        for end in node.ends:
            if end > size:
                longer.setdefault(self.tokens[end - 1 - size], _Node()).ends.append(end)
        return longer
