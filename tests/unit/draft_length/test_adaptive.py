"""Adaptive lengths: their choices against brute force, and their learning, without a clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest

from speculative_decoding.decoding.results import Round
from speculative_decoding.draft_length import AdaptiveLength, adaptive
from speculative_decoding.draft_length.passes import TYPICAL_TOKENS, RoundCosts
from speculative_decoding.drafters.base import COPY, MODEL
from speculative_decoding.errors import InputError

FLAT = RoundCosts({1: 1.0, 17: 1.2}, step=0.05, start=0.03)
STEP = RoundCosts({1: 1.0, 4: 1.1, 17: 2.2}, step=0.05, start=0.03)
STEEP = RoundCosts({width: float(width) for width in range(1, 18)}, step=0.05, start=0.03)
MEASURED = RoundCosts(  # milliseconds of the bundled target and draft model, on two x86-64 cores
    {1: 2.23, 2: 2.58, 3: 2.73, 4: 3.12, 6: 3.81, 10: 4.23, 13: 5.25, 17: 5.8}, step=0.164, start=0.223, prefill=1.761
)
NOTHING = [Round([], [], 0)]


def round_of(kind: str, drafted: int, accepted: int) -> Round:
    return Round([], [0] * drafted, accepted, kind=kind)


def speed(length: AdaptiveLength, costs: RoundCosts, right: float, rounds: int = 600) -> float:
    """Return the speedup over the baseline in `rounds` rounds that accept each draft token with probability `right`.

    A request has 32 rounds. The draft model encodes its source before the first draft.
    """
    rng, tokens, seconds = random.Random(5), 0, 0.0
    encoded = set[int]()  # requests
    for number in range(rounds):
        count = length.choose([MODEL], [99])[0] if length.begin_round() else 0
        accepted = next((i for i in range(count) if rng.random() >= right), count)
        length.observe([round_of(MODEL, count, accepted)] if count else NOTHING)
        tokens += accepted + 1
        seconds += costs.round_cost(count, count, prefills=count > 0 and number // 32 not in encoded)
        if count:
            encoded.add(number // 32)
    return tokens * costs.baseline / seconds


def best_speed(costs: RoundCosts, right: float) -> float:
    return max(sum(right**i for i in range(k + 1)) / costs.round_cost(k, k) for k in range(17))


def test_choice_equals_an_exhaustive_search_for_random_costs() -> None:
    rng = random.Random(3)
    drafted = 0
    for _ in range(200):
        seconds = sorted(rng.uniform(1.0, 3.0) for _ in range(rng.randint(1, 9)))
        passes = dict(zip(sorted(rng.sample(range(1, 24), len(seconds))), seconds, strict=True))
        costs = RoundCosts(passes, rng.uniform(0.0, 0.1), rng.uniform(0.0, 0.1), rng.choice([0.0, 1.0]))
        kinds = [rng.choice([COPY, MODEL, ""]) for _ in range(rng.randint(1, 5))]
        limits = [rng.randint(1, 20) for _ in kinds]
        length = AdaptiveLength(lambda rows, costs=costs: costs, prior=[rng.random()] * 3)  # type: ignore[misc]
        length.observe([round_of(kind, drafts := rng.randint(1, 16), rng.randint(0, drafts)) for kind in kinds])

        accepted = {kind: length._of(kind).expected() for kind in kinds}
        best, best_rate = (0, 0), adaptive.WORTHWHILE * len(kinds) / costs.baseline
        for longest, steps in product(range(1, 17), range(17)):
            if steps > longest or (steps and MODEL not in kinds) or (steps < longest and {*kinds} == {MODEL}):
                continue
            tokens = float(len(kinds))
            for kind, limit in zip(kinds, limits, strict=True):
                tokens += accepted[kind][min(limit, steps if kind == MODEL else longest)]
            prefill = costs.prefill * (1.0 + tokens / TYPICAL_TOKENS) if steps else 0.0
            if (rate := tokens / (costs.round_cost(longest, steps) + prefill)) > best_rate:
                best, best_rate = (longest, steps), rate
        expected = [min(limit, best[kind == MODEL]) for kind, limit in zip(kinds, limits, strict=True)]
        lengths, _ = length._best(kinds, limits, costs)
        assert [min(limit, lengths[kind]) for kind, limit in zip(kinds, limits, strict=True)] == expected
        drafted += best[0] > 0
    assert 50 < drafted < 200


@pytest.mark.parametrize(("costs", "right"), [(FLAT, 0.9), (STEP, 0.6), (STEEP, 0.2), (STEEP, 0.9)])
def test_speed_is_close_to_the_best_fixed_length(costs: RoundCosts, right: float) -> None:
    assert speed(AdaptiveLength(lambda rows: costs), costs, right, 1500) >= 0.95 * best_speed(costs, right)


def test_a_draft_that_improves_is_used_again() -> None:
    length = AdaptiveLength(lambda rows: FLAT)
    assert length.describe() == "the first round chooses a length"
    speed(length, FLAT, 0.0)
    assert "drafts nothing" in length.describe()
    speed(length, FLAT, 0.9)
    assert speed(length, FLAT, 0.9, 200) > 2.0


@pytest.mark.parametrize(("costs", "prior"), [(MEASURED, ()), (MEASURED, (0.8,) * 7), (STEP, (0.8,) * 7)])
def test_a_useless_draft_costs_at_most_two_percent(costs: RoundCosts, prior: Sequence[float]) -> None:
    assert speed(AdaptiveLength(lambda rows: costs, prior=prior), costs, 0.0) >= 0.98


def test_drafts_of_an_unknown_model_grow_with_its_accepted_tokens() -> None:
    """Recorded acceptance replaces this slow start, and copies do not need it."""
    length = AdaptiveLength(lambda rows: FLAT)
    drafted = []
    for accepted in (0, 2, 3, 6):
        drafted += length.choose([MODEL], [99])
        length.observe([round_of(MODEL, drafted[-1], accepted)])
    assert drafted == [2, 2, 4, 6]
    assert length.choose([COPY], [99]) == AdaptiveLength(lambda rows: FLAT, prior=(0.9,)).choose([MODEL], [99]) == [16]


def test_copies_continue_while_a_useless_model_is_idle() -> None:
    """An idle kind must not stop the drafting of other kinds."""
    length, drafted = AdaptiveLength(lambda rows: FLAT), {MODEL: 0, COPY: 0}
    for number in range(900):
        kind = COPY if number % 3 == 0 else MODEL
        count = length.choose([kind], [99])[0] if length.begin_round() else 0
        length.observe([round_of(kind, count, count * (kind == COPY))] if count else NOTHING)
        drafted[kind] += count > 0
    assert drafted[COPY] > 290 and drafted[MODEL] < 100


@pytest.mark.parametrize("most", [1, 3, 16])
def test_limits_are_kept(most: int) -> None:
    length = AdaptiveLength(lambda rows: FLAT, max_draft_tokens=most)
    for rooms in product((0, 1, 5, 99), repeat=3):
        lengths = length.choose((COPY, MODEL, COPY), rooms)
        assert all(0 <= n <= min(room, most) for n, room in zip(lengths, rooms, strict=True))


def test_outcomes_longer_than_the_limit_are_accepted() -> None:
    length = AdaptiveLength(lambda rows: FLAT, max_draft_tokens=4)
    length.observe([round_of(MODEL, 40, 40)])
    assert length.choose([MODEL], [9])[0] <= 4


def test_limit_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="max_draft_tokens: must be >= 1, not 0"):
        AdaptiveLength(lambda rows: FLAT, max_draft_tokens=0)
