"""Prompts are encoded and checked once for each model."""

from __future__ import annotations

import pytest

from speculative_decoding import InputError, Session
from speculative_decoding.decoding.prompt import encode_prompt
from tests.support.tiny import VOCAB, tiny_model
from tests.support.together import Letters

MODEL = tiny_model()


def test_encoded_prompts_are_not_encoded_again() -> None:
    tokens = encode_prompt(MODEL, Letters(), "abc")
    assert tokens.text == "abc" and encode_prompt(MODEL, Letters(), tokens) is tokens
    session = Session(MODEL, Letters())
    options = session.options_with({"temperature": 1.0, "num_return_sequences": 3})
    requests = session.engine(options, 3).submit_samples(tokens, options, session.planner.draft_length(options, 3))
    assert len(requests) == 3 and all(request.source is tokens for request in requests)


def test_tokens_of_another_model_are_checked() -> None:
    tokens = encode_prompt(MODEL, Letters(), "abc")
    smaller = tiny_model(vocab_size=4)
    for given in (tokens, [*tokens]):
        with pytest.raises(InputError, match="prompt: its tokens must be between 0 and 3, not 4"):
            encode_prompt(smaller, Letters(), given)
    larger = tiny_model(vocab_size=VOCAB + 1)
    again = encode_prompt(larger, Letters(), tokens)
    assert again == tokens and again.text == "abc" and again.model is larger
