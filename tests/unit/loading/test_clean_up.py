"""The clean-up of spaces in decoded text."""

from __future__ import annotations

import itertools

import pytest

from speculative_decoding.decoding.text_streamer import TextStreamer
from speculative_decoding.loading.clean_up import StreamedCleanUp, clean_up
from tests.support.tokenizers import FOLDERS, loaded

PARTS = ["", " ", "'", "n", "t", "'s", "v", "e", ".", "x", " n't", "  "]


def test_streamed_clean_up_equals_that_of_the_whole_text() -> None:
    for chosen in itertools.product(PARTS, repeat=4):
        stream = StreamedCleanUp()
        assert "".join(map(stream.add, chosen)) + stream.finish() == clean_up("".join(chosen))


@pytest.mark.parametrize(("stop", "text"), [("it's", "see "), (" 's", "see it's the. end"), ("the.", "see it's ")])
def test_stop_strings_see_the_final_text(stop: str, text: str) -> None:
    """The clean-up makes "it's" of the ids of "it 's"; a stop string with the space is never found."""
    tokenizer = loaded(FOLDERS["t5_added"])
    ids = tokenizer.encode("see it 's the . end")[:-1]
    assert tokenizer.decode(ids) == "see it's the. end"
    streamer = TextStreamer(tokenizer, {1}, [stop])
    assert "".join(map(streamer.add, ids)) + streamer.finish() == text


def test_the_text_of_a_prefix_is_not_part_of_the_output() -> None:
    tokenizer = loaded(FOLDERS["t5_added"])
    prefix, ids = tokenizer.encode("see it ")[:-1], tokenizer.encode(". end")[:-1]
    streamer = TextStreamer(tokenizer, {1}, prefix=prefix)
    assert "".join(map(streamer.add, ids)) + streamer.finish() == ". end"
    assert tokenizer.decode([*prefix, *ids]) == "see it. end"
