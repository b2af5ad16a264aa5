"""Stop strings, against letter-by-letter reading: nothing too early, nothing too late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from speculative_decoding.decoding.ending import Ending
from speculative_decoding.loading.tokenizer import Vocabulary

EOS = 0
PIECES = ["", "a", "b", "ab", "ba", "aab", "bab", "c", " a", "bca"]  # tokens of several letters
STOPS = [[], ["a"], ["ab"], ["aba", "b"], ["bb", "abba"], ["ca", "bca", "c b"], ["aabaab"], ["x"]]


class Pieces:
    """A tokenizer whose tokens are the strings above."""

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(PIECES[token] for token in tokens)

    @property
    def vocabulary(self) -> Vocabulary:
        raise NotImplementedError


def cut(text: str, stop: Sequence[str]) -> tuple[str, int | None]:
    """Letter by letter: at the first letter that completes a stop string, the text in front of the longest such."""
    for end in range(1, len(text) + 1):
        if complete := [each for each in stop if text[:end].endswith(each)]:
            return text[: end - max(map(len, complete))], end
    return text, None


def safe(text: str, stop: Sequence[str]) -> str:
    """As much as can be given out before more is known."""
    before, end = cut(text, stop)
    if end is not None:
        return before
    beginnings = [each[:size] for each in stop for size in range(1, len(each))]
    return text[: len(text) - max((len(each) for each in beginnings if text.endswith(each)), default=0)]


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_text_comes_as_early_as_it_may_and_ends_where_it_must(stop: list[str]) -> None:
    generator = np.random.default_rng(0)
    for _ in range(60):
        tokens = generator.integers(1, len(PIECES), size=12).tolist()
        ending, written, given = Ending(Pieces(), {EOS}, stop), "", ""
        for token in tokens:
            written += PIECES[token]
            ends = ending(token)
            given += ending.next_text()
            assert given == safe(written, stop)
            assert ends == (cut(written, stop)[1] is not None)
            if ends:
                break
        assert given + ending.finish() == cut(written, stop)[0]


def test_the_end_of_sequence_has_no_text_and_frees_what_was_held_back() -> None:
    ending = Ending(Pieces(), {EOS, 7}, ["abc"])
    assert not ending(3) and ending.next_text() == ""  # "ab" may become "abc"
    assert ending(7) and ending.next_text() == ""  # the letter c, but here an end
    assert ending.finish() == "ab"


def test_several_tokens_may_wait_for_their_text_to_be_asked_for() -> None:
    ending = Ending(Pieces(), {EOS}, ["bb"])
    assert [ending(token) for token in (1, 2, 1, 2, 2)] == [False] * 4 + [True]
    assert [ending.next_text() for _ in range(5)] == ["a", "", "ba", "", ""]
