"""What a guess is worth follows what happened, and only what could have been seen."""

from __future__ import annotations

import random

from speculative_decoding.drafters.trust import Trust

KIND = ("near", 1)


def made(chance: float, weight: float = 4.0) -> Trust:
    return Trust({KIND: (chance, weight)})


def test_the_reach_is_the_longest_draft_that_is_likely_enough_as_a_whole() -> None:
    for chance in (0.0, 0.1, 0.3, 0.5, 0.77, 0.9, 1.0):
        for least in (0.0, 0.15, 0.5, 0.9):
            expected = max((n for n in range(13) if n == 0 or chance**n >= least - 1e-12), default=0)
            assert made(chance).reach(KIND, least, 12) == expected


def test_the_chance_approaches_the_share_of_right_tokens() -> None:
    generator = random.Random(0)
    for share in (0.2, 0.5, 0.9):
        trust = made(0.5)
        recent = []
        for _ in range(400):
            right = generator.random() < share
            trust.learn(KIND, [1], [1 if right else 2])
            recent.append(trust.chance(KIND))
        assert abs(sum(recent[200:]) / 200 - share) < 0.08


def test_nothing_behind_the_first_wrong_token_counts() -> None:
    one, other = made(0.5), made(0.5)
    one.learn(KIND, [1, 2, 3, 4], [1, 9, 3, 4])
    other.learn(KIND, [1, 2], [1, 9])
    assert one.chance(KIND) == other.chance(KIND) == 3 / 6


def test_what_was_not_seen_does_not_count() -> None:
    trust = made(0.5)
    trust.learn(KIND, [1, 2, 3], [1])
    assert trust.chance(KIND) == 3 / 5


def test_a_kind_that_was_given_up_comes_back() -> None:
    trust = made(0.5)
    for _ in range(200):
        trust.learn(KIND, [1], [2])
    assert trust.reach(KIND, 0.15, 8) == 0
    for _ in range(30):
        trust.learn(KIND, [1], [1])
    assert trust.reach(KIND, 0.15, 8) > 0
