"""Lengths decided for all rows of a round, against every choice there is and against the best fixed lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest

from speculative_decoding.draft_length.adaptive import AdaptiveLength
from speculative_decoding.draft_length.costs import Costs
from speculative_decoding.draft_length.joint import JointLength
from speculative_decoding.draft_length.schedules import Drafted, DraftLength, FixedLength, experience
from speculative_decoding.drafters.base import COPY, MODEL
from speculative_decoding.errors import InputError

CHEAP = Costs(tuple(1 + 0.03 * i for i in range(17)), 0.05, 0.02)
STEEP = Costs(tuple(1 + 0.25 * i for i in range(17)), 0.04, 0.02)  # 16 rows on two cores
HOPELESS = Costs(tuple(1 + 0.9 * i for i in range(17)), 0.04, 0.02)
STEPS = Costs(tuple(1 + 0.5 * (i // 4) for i in range(17)), 0.08, 0.02)
COSTS = {"cheap": CHEAP, "steep": STEEP, "hopeless": HOPELESS, "steps": STEPS}
ROWS, ROUNDS = 8, 600


def joint(costs: Costs, most: int = 16) -> JointLength:
    return JointLength(costs.with_free_draft(), most=most, kinds={MODEL: costs})


def taught(costs: Costs, acceptance: Mapping[str, float], most: int = 16) -> JointLength:
    """One that has seen enough of each kind to be sure of it."""
    length, dice = joint(costs, most), random.Random(0)
    for _ in range(800):
        for kind, right in acceptance.items():
            length.observe(most, next((i for i in range(most) if dice.random() >= right), most), 0.0, kind)
    length.observe(0, 0, 0.0)  # a round without a draft is not due
    return length


def test_no_other_lengths_promise_more() -> None:
    """Every way to give each of three rows 0 to 3 tokens, by the law of the round."""
    acceptance = {COPY: 0.9, MODEL: 0.6}
    for costs in COSTS.values():
        length = taught(costs, acceptance, most=3)
        learned = {kind: length._kind(kind).acceptance for kind in acceptance}  # what it believes
        for kinds in product((COPY, MODEL), repeat=3):

            def rate(
                counts: Sequence[int], kinds: Sequence[str] = kinds, costs: Costs = costs, learned: Any = learned
            ) -> float:
                tokens = sum(
                    1 + sum(math.prod(learned[kind][: i + 1]) for i in range(count))
                    for kind, count in zip(kinds, counts, strict=True)
                )
                steps = max(count * (kind == MODEL) for kind, count in zip(kinds, counts, strict=True))
                return tokens / (costs.pass_seconds(max(counts) + 1) + steps * costs.draft + costs.host)

            best = max(product(range(4), repeat=3), key=rate)
            chosen = length.next_of_rows([(3, kind) for kind in kinds])
            if rate(best) >= 1.03 * rate((0, 0, 0)):
                assert rate(chosen) == pytest.approx(rate(best))
            else:
                assert chosen == [0, 0, 0] or length.parked  # a probe perhaps


class Chances(NamedTuple):
    """What a row would do in a round, whatever is asked of it."""

    kind: str
    found: bool  # has its drafter anything to propose?
    right: int  # so many of 16 drafted tokens would be accepted


@cache
def job(right: Sequence[tuple[str, float]], copies: float, found: float, rounds: int) -> list[list[Chances]]:
    """The same for every length, so it is drawn once."""
    dice, chance, made = random.Random(4), dict(right), []
    for _ in range(rounds):
        kinds = [COPY if dice.random() < copies else MODEL for _ in range(ROWS)]
        rows = []
        for kind in kinds:
            chances = [dice.random() for _ in range(16)]
            correct = next((i for i in range(16) if chances[i] >= chance[kind]), 16)
            rows.append(Chances(kind, kind == MODEL or dice.random() < found, correct))
        made.append(rows)
    return made


def decode(
    length: DraftLength,
    costs: Costs,
    right: Mapping[str, float],
    *,
    copies: float = 0.2,
    found: float = 1.0,
    rounds: int = ROUNDS,
    looking: float = 0.0,
) -> float:
    """Tokens per second of a long job. copies: how many rows can copy. looking: seconds it takes to ask what there is
    to draft, in each round that asks.
    """
    tokens, total = 0, 0.0
    for rows in job(tuple(right.items()), copies, found, rounds):
        rests = length.rests()
        asked = [0] * len(rows) if rests else length.next_of_rows([(30, row.kind) for row in rows])
        parts = []
        for row, count in zip(rows, asked, strict=True):
            drafted = count if row.found else 0
            accepted = min(drafted, row.right)
            parts.append(Drafted(count, drafted, accepted, "" if rests else row.kind))
            tokens += accepted + 1
        steps = max(part.drafted * (part.kind == MODEL) for part in parts)
        seconds = costs.pass_seconds(max(part.drafted for part in parts) + 1) + steps * costs.draft + costs.host
        seconds += looking * (not rests)
        length.observe_rows(parts, seconds)
        total += seconds
    return tokens / total


def speeds_of_pairs(
    costs: Costs, right: Mapping[str, float], pairs: Iterable[tuple[int, int]], *, copies: float = 0.2
) -> list[float]:
    """What `decode` says of `Fixed(*pair)`, all rounds at once."""
    rows = job(tuple(right.items()), copies, 1.0, ROUNDS)
    is_model = np.array([[row.kind == MODEL for row in each] for each in rows])
    correct = np.array([[row.right for row in each] for each in rows])
    pass_seconds = np.array([costs.pass_seconds(width + 1) for width in range(17)])
    speeds = []
    for copied, modelled in pairs:
        drafted = np.where(is_model, modelled, copied)
        seconds = pass_seconds[drafted.max(axis=1)] + (drafted * is_model).max(axis=1) * costs.draft + costs.host
        speeds.append(float((np.minimum(drafted, correct) + 1).sum() / seconds.sum()))
    return speeds


class Fixed(FixedLength):
    """So many for copies, so many for the model."""

    def __init__(self, copies: int, model: int) -> None:
        super().__init__(max(copies, model))
        self._counts = {COPY: copies, MODEL: model}

    def next(self, most: int, kind: str = "") -> int:
        return min(most, self._counts[kind])


RIGHT = {
    "good": {COPY: 0.9, MODEL: 0.7},
    "copies only": {COPY: 0.9, MODEL: 0.05},
    "model only": {COPY: 0.1, MODEL: 0.8},
    "useless": {COPY: 0.02, MODEL: 0.02},
}


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("costs", COSTS)
def test_it_is_about_as_fast_as_the_best_fixed_pair_and_never_slower_than_none(costs: str, right: str) -> None:
    speed = decode(joint(COSTS[costs]), COSTS[costs], RIGHT[right])
    pairs = list(product((0, 1, 2, 3, 4, 6, 8, 12, 16), repeat=2))
    fixed = speeds_of_pairs(COSTS[costs], RIGHT[right], pairs)
    for i in (0, 14, 80):
        assert fixed[i] == pytest.approx(decode(Fixed(*pairs[i]), COSTS[costs], RIGHT[right]))
    assert speed >= 0.95 * max(fixed) and speed >= 0.98 * fixed[0]


@pytest.mark.parametrize("right", ["copies only", "good"])
def test_lengths_decided_row_by_row_are_slower(right: str) -> None:
    """The planted fault: one row's long copy is a wide pass for all."""
    apart = AdaptiveLength(STEEP.with_free_draft(), kinds={MODEL: STEEP})
    assert decode(apart, STEEP, RIGHT[right]) < 0.95 * decode(joint(STEEP), STEEP, RIGHT[right])


def test_a_drafter_that_often_finds_nothing() -> None:
    for costs in COSTS.values():
        speed = decode(joint(costs), costs, RIGHT["good"], copies=1.0, found=0.05)
        fixed = [decode(Fixed(n, 0), costs, RIGHT["good"], copies=1.0, found=0.05) for n in (0, 1, 2, 4, 8, 16)]
        assert speed >= 0.95 * max(fixed) and speed >= 0.98 * fixed[0]


def test_looking_for_drafts_is_a_cost_too() -> None:
    """Parked it seldom looks; and a draft that gains less than the looking costs is not worth it."""
    plain = decode(Fixed(0, 0), STEEP, RIGHT["useless"])  # which never looks
    assert decode(joint(STEEP), STEEP, RIGHT["useless"], looking=0.1) >= 0.97 * plain
    gain = decode(joint(STEEP), STEEP, RIGHT["good"]) / plain
    assert 1.05 < gain < 1.5
    assert decode(joint(STEEP), STEEP, RIGHT["good"], looking=0.6, rounds=2000) >= 0.92 * plain

    class Restless(JointLength):
        def rests(self) -> bool:
            return False

    restless = Restless(STEEP.with_free_draft(), kinds={MODEL: STEEP})
    assert decode(restless, STEEP, RIGHT["useless"], looking=0.1) < 0.93 * plain


def test_costs_that_are_no_longer_true_are_corrected() -> None:
    """Measured as cheap, in truth ten times as dear: it finds out in a hundred rounds, dear ones, and then holds."""
    plain = decode(Fixed(0, 0), HOPELESS, RIGHT["good"])
    assert decode(joint(CHEAP), HOPELESS, RIGHT["good"], rounds=4000) >= 0.93 * plain

    class Deaf(JointLength):
        def observe_rows(self, rows: Sequence[Drafted], seconds: float) -> None:
            super().observe_rows(rows, 0.0)

    deaf = Deaf(CHEAP.with_free_draft(), kinds={MODEL: CHEAP})
    assert decode(deaf, HOPELESS, RIGHT["good"], rounds=4000) < 0.5 * plain


def with_reading(length: DraftLength, costs: Costs, right: float, reading: float, rounds: int = 3000) -> float:
    """Tokens per second where the draft model speaks for all rows, reads each request that it has not read when it
    speaks, and requests have about thirty tokens.
    """
    dice, unread, tokens, total = random.Random(6), [True] * ROWS, 0, 0.0
    for _ in unread:
        length.begin()
    for _ in range(rounds):
        count = 0 if length.rests() else length.next_of_rows([(30, MODEL)] * ROWS)[0]
        parts, seconds = [], costs.round_seconds(count)
        for row in range(ROWS):
            accepted = next((i for i in range(count) if dice.random() >= right), count)
            parts.append(Drafted(count, count, accepted, MODEL if count else ""))
            tokens += accepted + 1
            if count and unread[row]:
                seconds, unread[row] = seconds + reading, False
        length.observe_rows(parts, seconds)
        total += seconds
        for row in range(ROWS):
            if dice.random() < 1 - (29 / 30) ** (parts[row].accepted + 1):
                length.begin()
                unread[row] = True
    return tokens / total


@pytest.mark.parametrize("right", [0.0, 0.5, 0.9])
def test_what_the_draft_model_reads_must_be_earned(right: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request takes it as long to read as half a round, and there are eight."""
    plain = with_reading(Fixed(0, 0), STEEP, right, 0.5)
    best = max(with_reading(Fixed(0, count), STEEP, right, 0.5) for count in (0, 1, 2, 3, 4, 6, 8))
    speed = with_reading(joint(STEEP), STEEP, right, 0.5)
    assert speed >= 0.98 * plain and speed >= 0.95 * best
    monkeypatch.setattr(experience.SharedReading, "seconds", 0.0)
    if right == 0.0:
        assert with_reading(joint(STEEP), STEEP, right, 0.5) < 0.98 * plain


def test_it_parks_says_so_and_comes_back() -> None:
    length = joint(STEEP)
    decode(length, STEEP, RIGHT["useless"])
    assert length.parked and "parked" in length.describe()
    decode(length, STEEP, RIGHT["good"])
    assert not length.parked and "promises" in length.describe()


def test_room_is_kept() -> None:
    length = taught(CHEAP, {COPY: 0.9, MODEL: 0.9})
    for rooms in product((0, 1, 5, 99), repeat=3):
        counts = length.next_of_rows([(room, kind) for room, kind in zip(rooms, (COPY, MODEL, COPY), strict=True)])
        assert all(0 <= count <= min(room, 16) for count, room in zip(counts, rooms, strict=True))


def test_no_length_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="the longest draft must be >= 1, not 0"):
        JointLength(CHEAP, most=0)
