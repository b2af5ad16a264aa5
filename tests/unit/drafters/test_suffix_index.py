"""The index against naive search. Random texts have few symbols, so long repeats are common."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from speculative_decoding.drafters.suffix_index import BOUNDARY, SuffixIndex


def naive(tokens: Sequence[int], text: Sequence[int], max_size: int) -> list[list[int]]:
    """Return, for each size, where the last `size` tokens of `text` end in `tokens`, except at the end of `tokens`."""
    found = []
    for size in range(1, min(max_size, len(text)) + 1):
        suffix = list(text[-size:])
        ends = [
            end
            for end in range(size, len(tokens))
            if list(tokens[end - size : end]) == suffix and tokens[end] != BOUNDARY
        ]
        if not ends:
            break
        found.append(ends)
    return found


@pytest.mark.parametrize(("max_size", "symbols"), [(1, 2), (3, 1), (3, 4), (50, 1), (50, 2)])
def test_searching_a_growing_text_equals_naive_search_at_every_length(max_size: int, symbols: int) -> None:
    """Later tokens must update contexts that searches have split. Boundaries are inserted at random."""
    generator = random.Random(symbols)
    for _ in range(20):
        tokens: list[int] = []
        index = SuffixIndex(max_size)
        while len(tokens) < 60:
            new = generator.choices(range(symbols), k=generator.choice([1, 1, 1, 2, 5]))
            if generator.random() < 0.1:
                new.append(BOUNDARY)
            tokens += new
            index.extend(new)
            assert index.tokens == tokens
            if tokens[-1] != BOUNDARY and generator.random() < 0.7:
                assert index.find(tokens) == naive(tokens, tokens, max_size)
            other = generator.choices(range(symbols + 1), k=generator.randrange(12))  # one symbol more
            assert index.find(other) == naive(tokens, other, max_size)


def test_neither_contexts_nor_continuations_cross_a_boundary() -> None:
    index = SuffixIndex(8, [1, 2, BOUNDARY, 3, 4, 5])
    assert index.find([1, 2]) == []  # no token follows 2
    assert index.find([2, 3]) == [[4]]
    assert index.find([1, 2, 3, 4]) == [[5], [5]]


def test_repeated_searches_do_no_further_work() -> None:
    """Each position moves down each level at most once, so moves are bounded by size x depth."""
    moved: list[int] = []

    class Counting(SuffixIndex):
        def _split(self, ends: Sequence[int], size: int) -> dict[int, list[int]]:
            moved.append(len(ends))
            return super()._split(ends, size)

    index = Counting(8, [3] * 500)
    for _ in range(50):
        assert len(index.find([3] * 20)) == 8
    assert 0 < sum(moved) <= 500 * 8
    splits = len(moved)
    index.find([3] * 20)
    assert len(moved) == splits
