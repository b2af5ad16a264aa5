"""A fixed number of drafted tokens, and what callers may name one."""

from __future__ import annotations

import pytest

from speculative_decoding.draft_length import Choice, FixedLength, choose_length
from speculative_decoding.errors import InputError


def test_none_asks_for_more_than_there_is_room_for() -> None:
    length = FixedLength(3)
    length.begin()
    assert length.choose([Choice(room) for room in (0, 1, 2, 3, 4)]) == [0, 1, 2, 3, 3]
    assert "3" in length.describe() and "\n" not in length.describe()


def test_impossible_numbers_are_named() -> None:
    with pytest.raises(InputError, match=r"num_draft must be >= 0, not -1"):
        FixedLength(-1)
    with pytest.raises(InputError, match=r"num_draft must be a whole number, auto or a DraftLength, not 'heuristic'"):
        choose_length("heuristic")
