"""The ids that a draft model may propose: the most frequent ones, and always the end tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from speculative_decoding import InputError, load
from speculative_decoding.drafters.draft_model import DraftVocabulary
from speculative_decoding.loading.load import BUNDLED

OUTPUTS = [[5, 5, 5, 1], [7, 7, 5, 1], [7, 9, 1], [3, 1]]


@pytest.mark.parametrize("size", range(1, 8))
def test_vocabulary_has_the_ends_and_the_most_frequent_ids(size: int) -> None:
    ids = DraftVocabulary.most_frequent(size, OUTPUTS, [1]).ids
    assert ids == (1, 5, 7, 9, 3)[:size]  # ties keep the order of first occurrence
    assert DraftVocabulary.most_frequent(size, OUTPUTS, [1, 2]).ids[:2] == (1, 2)


def test_an_end_token_is_included_exactly_once() -> None:
    for outputs in (OUTPUTS, [[5, 7]], [[1, 1, 1, 5]]):
        ids = DraftVocabulary.most_frequent(4, outputs, [1]).ids
        assert ids.count(1) == 1 and len(set(ids)) == len(ids)


def test_ids_that_accompany_a_source_id_are_learned() -> None:
    """Each output contains 100 + s for every source id s, shuffled, and also frequent ids and a copied id."""
    rng, pairs = np.random.default_rng(0), []
    for _ in range(200):
        source = [*map(int, rng.permutation(40)[:6] + 10)]
        output = [2, 3, source[0], *(100 + token for token in rng.permutation(source)), 1]
        pairs.append((source, [*map(int, output)]))
    pairs.append(([10, 11], [999, 1]))  # too rare to be learned
    vocabulary = DraftVocabulary.learned(3, pairs, [1])
    assert vocabulary.ids == (1, 2, 3)
    assert vocabulary.by_source == {token: [100 + token] for token in range(10, 50)}
    assert vocabulary.ids_for([12, 3, 40, 77]) == {12, 3, 40, 77, 112, 140}


def test_lines_are_counted_by_the_tokens_of_the_tokenizer() -> None:
    _, tokenizer = load(BUNDLED / "t5-web-docs-draft")
    lines = ["Die Methode gibt den Wert zurück.", "", "Die Eigenschaft.", "  "]
    counts = Counter(token for line in lines if line.strip() for token in tokenizer.encode(line))
    ids = DraftVocabulary.from_lines(4, lines, tokenizer, [1]).ids
    assert ids[0] == 1 and [counts[token] for token in ids[1:]] == sorted(counts.values(), reverse=True)[1:4]


@pytest.mark.parametrize(
    ("size", "outputs", "named"),
    [
        (0, OUTPUTS, "draft_vocab must be >= 1, not 0"),
        (5, [], "the text has no tokens"),
        (5, [[1], [1]], "the text has no tokens"),
    ],
)
def test_invalid_arguments_are_named(size: int, outputs: list[list[int]], named: str) -> None:
    with pytest.raises(InputError, match=named):
        DraftVocabulary.most_frequent(size, outputs, [1])
