"""A draft model fits a target if every token id has the same meaning in both."""

from __future__ import annotations

from typing import Any

import pytest

from speculative_decoding import InputError
from speculative_decoding.loading.pair import open_pair, require_same_tokens
from speculative_decoding.loading.tokenizer import Vocabulary
from tests.support.hub import TINY
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 32}, "^group_size: 32 has no effect without quantize; give 4 or 8 bits, or leave it out$"),
        (
            {"draft": "self-8bit", "quantize": 4},
            "^draft: 'self-8bit' needs a target that is not quantized; leave out",
        ),
        ({"quantize": True}, "^quantize: must be one of 4, 8, not True$"),
        ({"dtype": "int8"}, "^dtype: must be one of float32, bfloat16, float16, not 'int8'$"),
    ],
)
def test_options_that_have_no_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_pair(TINY, **options)


def test_a_model_is_a_folder_or_a_name() -> None:
    with pytest.raises(InputError, match="a model must be a folder or a name, not int"):
        open_pair(3)  # type: ignore[arg-type]
