"""A fixed draft length."""

from __future__ import annotations

import pytest

from speculative_decoding.draft_length import FixedLength
from speculative_decoding.errors import InputError


def test_a_fixed_length_is_cut_to_the_tokens_that_fit() -> None:
    length = FixedLength(3)
    assert length.choose([""] * 5, [0, 1, 2, 3, 4]) == [0, 1, 2, 3, 3]
    assert "3" in length.describe() and "\n" not in length.describe()


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(InputError, match=r"num_draft_tokens: must be >= 0, not -1"):
        FixedLength(-1)
