"""The cost of a round."""

from __future__ import annotations

import pytest

from speculative_decoding.draft_length.passes import RoundCosts

COSTS = RoundCosts({1: 1.0, 4: 2.0, 8: 5.0}, step=0.1, start=0.3, prefill=0.7)


def test_a_round_costs_its_padded_pass_plus_its_draft() -> None:
    assert [COSTS.padded_width(tokens) for tokens in (1, 2, 4, 5, 8, 9)] == [1, 4, 4, 8, 8, 9]
    assert COSTS.baseline == COSTS.round_cost(0) == 1.0
    assert COSTS.round_cost(2) == COSTS.round_cost(3) == 2.0
    assert COSTS.round_cost(2, 2, 1) == pytest.approx(2.0 + 0.3 + 0.2 + 0.7)
    assert COSTS.round_cost(8) == float("inf")
