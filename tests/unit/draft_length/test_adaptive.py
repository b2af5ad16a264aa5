"""Adaptive lengths: their choices against brute force, and their learning, without a clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest

from speculative_decoding.decoding.results import Round
from speculative_decoding.draft_length import AdaptiveLength, adaptive
from speculative_decoding.draft_length.passes import TYPICAL_TOKENS, RoundCosts
from speculative_decoding.drafters.base import COPY, MEMORY, MODEL, TEXT
from speculative_decoding.errors import InputError

FLAT = RoundCosts({1: 1.0, 17: 1.2}, step=0.05, start=0.03)
STEP = RoundCosts({1: 1.0, 4: 1.1, 17: 2.2}, step=0.05, start=0.03)
STEEP = RoundCosts({width: float(width) for width in range(1, 18)}, step=0.05, start=0.03)
MEASURED = RoundCosts(  # milliseconds of the bundled target and draft model, on two x86-64 cores
    {1: 2.23, 2: 2.58, 3: 2.73, 4: 3.12, 6: 3.81, 10: 4.23, 13: 5.25, 17: 5.8}, step=0.164, start=0.223, prefill=1.761
)
FOUR_BITS = RoundCosts({1: 1.0, 2: 1.83, 4: 3.26, 8: 5.28, 17: 6.3})
LONG = RoundCosts(dict(FLAT.passes), untimed=(24, 32, 48, 64))
NOTHING = [Round([], [], 0)]


def round_of(kind: str, drafted: int, accepted: int) -> Round:
    return Round([], [0] * drafted, accepted, kind=kind)


def speed(length: AdaptiveLength, costs: RoundCosts, right: float, rounds: int = 600, kind: str = MODEL) -> float:
    """Return the speedup over the baseline in `rounds` rounds that accept each draft token with probability `right`.

    A request has 32 rounds. The draft model encodes its source before the first draft.
    """
    rng, tokens, seconds = random.Random(5), 0, 0.0
    encoded = set[int]()  # requests
    for number in range(rounds):
        count = length.choose([kind], [99])[0] if length.wants_drafts() else 0
        accepted = next((i for i in range(count) if rng.random() >= right), count)
        length.observe([round_of(kind, count, accepted)] if count else NOTHING)
        tokens += accepted + 1
        steps = count if kind == MODEL else 0
        seconds += costs.round_cost(count, steps, prefills=steps > 0 and number // 32 not in encoded)
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
        widths = sorted(rng.sample(range(1, rng.choice([24, 66])), len(seconds)))
        passes = dict(zip(widths, seconds, strict=True))
        costs = RoundCosts(passes, rng.uniform(0.0, 0.1), rng.uniform(0.0, 0.1), rng.choice([0.0, 1.0]))
        kinds = [rng.choice([COPY, MODEL, TEXT, MEMORY, ""]) for _ in range(rng.randint(1, 5))]
        limits = [rng.randint(1, rng.choice([20, 63])) for _ in kinds]
        length = AdaptiveLength(lambda rows, costs=costs: costs, prior=[rng.random()] * 3)  # type: ignore[misc]
        length.observe([round_of(kind, drafts := rng.randint(1, 16), rng.randint(0, drafts)) for kind in kinds])

        accepted = {kind: length._of(kind).expected(64) for kind in kinds}
        best, best_rate = (0, 0), adaptive.WORTHWHILE * len(kinds) / costs.baseline
        for longest, steps in product(range(1, 65), range(17)):
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


def test_each_kind_learns_its_own_acceptance() -> None:
    """In one batch, rows copy, follow a good text, follow a useless one of a memory, and use a useless head."""
    length = AdaptiveLength(lambda rows: STEP, prior=(0.8,) * 7)
    right = {COPY: 2, TEXT: 16, MEMORY: 0, MODEL: 0}
    for _ in range(40):
        counts = length.choose([*right], [99] * 4)
        length.observe([round_of(kind, n, min(n, right[kind])) for kind, n in zip(right, counts, strict=True)])
    assert counts == [16, 16, 16, 0]  # a longer copy in a wide pass costs nothing
    assert [length.choose([kind], [99]) for kind in (COPY, TEXT, MEMORY)] == [[3], [16], [0]]


def test_copies_start_with_full_lengths() -> None:
    for kind in (COPY, TEXT, MEMORY):
        assert AdaptiveLength(lambda rows: FLAT).choose([kind], [99]) == [16]


@pytest.mark.parametrize("costs", [FLAT, STEP, STEEP, MEASURED, FOUR_BITS])
def test_useless_copies_cost_at_most_two_percent(costs: RoundCosts) -> None:
    assert speed(AdaptiveLength(lambda rows: costs), costs, 0.0, kind=TEXT) >= 0.98


def wanted(kind: str, right: float, costs: RoundCosts = LONG, rounds: int = 40) -> list[tuple[int, int]]:
    """Return the passes, as (rows, width), that are requested in rounds of one row."""
    found: list[tuple[int, int]] = []
    length = AdaptiveLength(lambda rows: costs, widen=lambda rows, width: found.append((rows, width)))
    speed(length, costs, right, rounds, kind)
    return found


def test_wider_passes_are_requested_only_where_whole_copies_are_right() -> None:
    for kind in (COPY, TEXT, MEMORY):
        assert {*wanted(kind, 1.0)} == {(1, 24)}
        assert wanted(kind, 0.3) == []
    assert wanted(MODEL, 1.0) == wanted("", 1.0) == []
    assert wanted(TEXT, 1.0, rounds=1) == []  # a prior is no reason
    assert wanted(TEXT, 1.0, FLAT) == []  # nothing can be timed


def test_the_narrowest_pass_that_may_pay_is_requested() -> None:
    """The cost has a step before the widest pass, so only much wider ones could have a higher rate."""
    step = RoundCosts({1: 1.0, 15: 1.1, 17: 2.2}, untimed=LONG.untimed)
    assert wanted(TEXT, 1.0, step)[-1] == (1, 32)
    dear = RoundCosts({1: 1.0, 15: 1.1, 17: 9.0}, untimed=LONG.untimed)
    assert wanted(TEXT, 1.0, dear) == []


def test_widths_that_were_not_timed_are_never_used() -> None:
    rng = random.Random(1)
    for _ in range(200):
        widths = sorted(rng.sample(range(2, 65), 4))
        costs = RoundCosts({1: 1.0} | {width: 1.1 for width in widths[:2]}, untimed=widths[2:])
        length = AdaptiveLength(lambda rows, costs=costs: costs)  # type: ignore[misc]
        for _ in range(5):
            kinds = [rng.choice([COPY, TEXT, MODEL]) for _ in range(3)]
            counts = length.choose(kinds, [rng.randint(1, 99) for _ in kinds])
            assert 1 + max(counts) <= widths[1]
            length.observe([round_of(kind, n, n) for kind, n in zip(kinds, counts, strict=True)])


def test_only_copies_use_wider_passes() -> None:
    costs = RoundCosts({1: 1.0, 17: 1.1, 64: 1.2})
    length = AdaptiveLength(lambda rows: costs, prior=(0.99,) * 16)
    for kind in (COPY, TEXT, MEMORY, MODEL, ""):
        length.observe([round_of(kind, 16, 16)] * 40)
    counts = length.choose([COPY, TEXT, MEMORY, MODEL, ""], [99] * 5)
    assert counts == [63, 63, 63, 16, 16]


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
        count = length.choose([kind], [99])[0] if length.wants_drafts() else 0
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
