"""What two hypotheses in a row agree on is final, and never changes (LocalAgreement-2)."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.speech.live.agreement import Agreement, HypothesisWord, most_similar_prefix

LETTERS = st.lists(st.sampled_from("abc"), max_size=6)


def words(text: str) -> list[HypothesisWord]:
    return [HypothesisWord(f" {word}", [0]) for word in text.split()]


def texts(found: list[HypothesisWord]) -> str:
    return "".join(word.text for word in found)


def common_prefix(one: list[str], other: list[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(LETTERS, min_size=1, max_size=6))
def test_the_longest_common_prefix_of_two_hypotheses_is_final(hypotheses: list[list[str]]) -> None:
    """As long as no hypothesis changes final words, the final text is the longest prefix that two in a row share."""
    agreement = Agreement()
    final: list[str] = []
    longest = [0, *accumulate((common_prefix(*pair) for pair in pairwise(hypotheses)), max)]
    for hypothesis, expected in zip(hypotheses, longest, strict=True):
        if hypothesis[: len(final)] != final:
            return
        final += [word.text for word in agreement.add([HypothesisWord(word, [0]) for word in hypothesis])]
        assert final == hypothesis[:expected]
        assert [word.text for word in agreement.pending] == hypothesis[expected:]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(LETTERS, max_size=6))
def test_every_word_is_final_or_pending_and_the_end_makes_all_final(hypotheses: list[list[str]]) -> None:
    agreement = Agreement()
    written: list[HypothesisWord] = []
    for hypothesis in hypotheses:
        new = agreement.add([HypothesisWord(word, [0]) for word in hypothesis])
        written += new
        assert agreement.final == written  # only appended to
        assert [word.text for word in [*new, *agreement.pending]] == hypothesis[agreement.num_final - len(new) :]
    pending = agreement.pending
    assert agreement.finish() == pending and not agreement.pending and agreement.final == [*written, *pending]


@settings(derandomize=True, deadline=None, max_examples=300)
@given(LETTERS, LETTERS)
def test_the_most_similar_prefix_has_the_smallest_edit_distance(wanted: list[str], other: list[str]) -> None:
    def distance(one: list[str], two: list[str]) -> int:
        if not one or not two:
            return len(one) + len(two)
        changes = distance(one[1:], two[1:]) + (one[0] != two[0])
        return min(changes, distance(one[1:], two) + 1, distance(one, two[1:]) + 1)

    distances = [distance(wanted[:5], other[:length]) for length in range(len(other) + 1)]
    found = most_similar_prefix(wanted[:5], other)
    assert distances[found] == min(distances) and min(distances) not in distances[found + 1 :]


@pytest.mark.parametrize(
    ("hypotheses", "final", "pending"),
    [
        (["And so", "and so, my"], " and so,", " my"),  # case and punctuation
        (["he is", "he is not", "He was not there", "He was not there."], " he is not there.", ""),  # a correction
        (["a b", "a b c", "b c d", "b c d e"], " a b c d", " e"),  # the first word is gone
        (["a b", "a b", "x a b c", "x a b c"], " a b c", ""),  # one more word before them
        (["straße", "STRASSE it"], " STRASSE", " it"),
        (["a b", "", "a b c"], "", " a b c"),
        (["a b. c d.", "a b. c d. e", "a b.", "a b. c d. e f", "a b. c d. e f"], " a b. c d. e f", ""),  # it forgot
        (
            ["a b c d", "a b c d", "e f g h i", "e f g h i j"],
            " a b c d e f g h i",
            " j",
        ),  # it left out all that is final
        (["a b", "a b", "x y c", "x y c"], " a b c", ""),  # it corrected both words
    ],
)
def test_final_text_is_neither_changed_nor_repeated(hypotheses: list[str], final: str, pending: str) -> None:
    agreement = Agreement()
    assert "".join(texts(agreement.add(words(text))) for text in hypotheses) == final
    assert texts(agreement.pending) == pending


def test_words_before_a_cut_no_longer_count() -> None:
    agreement = Agreement()
    agreement.add(words("a b c d"))
    agreement.add(words("a b c e"))
    assert texts(agreement.cut(2)) == " a b"
    assert texts(agreement.final) == " c" and texts(agreement.pending) == " e"
    assert texts(agreement.add(words("c e f"))) == " e"
