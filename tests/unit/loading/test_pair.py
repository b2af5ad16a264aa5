"""A draft model fits a target if every token id has the same meaning in both."""

from __future__ import annotations

import pytest

from speculative_decoding import InputError
from speculative_decoding.loading.pair import require_same_tokens
from speculative_decoding.loading.tokenizer import Vocabulary
from tests.support.tiny import tiny_model


def test_fingerprints_are_equal_if_all_pieces_are() -> None:
    one, same = Vocabulary({"a": 0, "b": 1, "c": 2}), Vocabulary({"c": 2, "b": 1, "a": 0})
    assert one.fingerprint == same.fingerprint and one.pieces == same.pieces
    for other in ({"a": 0, "c": 1, "b": 2}, {"a": 0, "b": 1}, {"a": 0, "b": 1, "c": 3}):
        assert Vocabulary(other).fingerprint != one.fingerprint


def test_a_draft_with_other_tokens_is_refused_with_the_first_difference() -> None:
    target, draft = tiny_model(), tiny_model()
    target.pieces, draft.pieces = (Vocabulary({chr(97 + i): i for i in range(9)}).pieces for _ in range(2))
    require_same_tokens(target, draft)
    draft.pieces = Vocabulary({"x": 5}).pieces
    with pytest.raises(InputError, match="token 0 is None, in the target it is 'a'"):
        require_same_tokens(target, draft)
    with pytest.raises(InputError, match="decoder_start_token_id is 3"):
        require_same_tokens(target, tiny_model(decoder_start_token_id=3))
