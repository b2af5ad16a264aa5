"""Stop strings, against a letter-by-letter search: text is released neither too early nor too late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from speculative_decoding.decoding.text_streamer import TextStreamer
from speculative_decoding.loading.tokenizer import Vocabulary

EOS = 0
PIECES = ["", "a", "b", "ab", "ba", "aab", "bab", "c", " a", "bca"]  # tokens of several letters
STOPS = [[], ["a"], ["ab"], ["aba", "b"], ["bb", "abba"], ["ca", "bca", "c b"], ["aabaab"], ["x"]]


class Pieces:
    """A tokenizer whose tokens are `PIECES`."""

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(PIECES[token] for token in tokens)

    @property
    def vocabulary(self) -> Vocabulary:
        raise NotImplementedError


def cut(text: str, stop: Sequence[str]) -> tuple[str, int | None]:
    """Return the text before the first complete stop string, and where that string ends.

    If several end at the same character, the longest one counts.
    """
    for end in range(1, len(text) + 1):
        if complete := [each for each in stop if text[:end].endswith(each)]:
            return text[: end - max(map(len, complete))], end
    return text, None


def safe(text: str, stop: Sequence[str]) -> str:
    """Return the text that no later token can change."""
    before, end = cut(text, stop)
    if end is not None:
        return before
    beginnings = [each[:size] for each in stop for size in range(1, len(each))]
    return text[: len(text) - max((len(each) for each in beginnings if text.endswith(each)), default=0)]


@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_text_is_released_as_early_as_possible_and_ends_before_the_stop_string(stop: list[str]) -> None:
    generator = np.random.default_rng(0)
    for _ in range(60):
        tokens = generator.integers(1, len(PIECES), size=12).tolist()
        streamer, written, released = TextStreamer(Pieces(), {EOS}, stop), "", ""
        for token in tokens:
            written += PIECES[token]
            released += streamer.add(token)
            assert released == safe(written, stop)
            assert streamer.has_ended == (cut(written, stop)[1] is not None)
            if streamer.has_ended:
                break
        assert released + streamer.finish() == cut(written, stop)[0]


def test_the_end_of_sequence_has_no_text_and_releases_held_text() -> None:
    streamer = TextStreamer(Pieces(), {EOS, 7}, ["abc"])
    assert streamer.add(3) == "" and not streamer.has_ended  # "ab" may become "abc"
    assert streamer.add(7) == "" and streamer.has_ended  # the letter c, but here an end token
    assert streamer.finish() == "ab"
