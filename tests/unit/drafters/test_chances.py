"""Estimated chances of copies: they follow the observed outcomes."""

from __future__ import annotations

import random

from speculative_decoding.drafters.ngram import PRIOR_WEIGHT, CopyChances, likely_length

MATCH = ("source", 1)  # origin, length


def made(chance: float) -> CopyChances:
    return CopyChances([chance])


def test_likely_length_is_the_longest_draft_with_the_required_probability() -> None:
    for chance in (0.0, 0.1, 0.3, 0.5, 0.77, 0.9, 1.0):
        for min_chance in (0.0, 0.15, 0.5, 0.9):
            expected = max((n for n in range(13) if n == 0 or chance**n >= min_chance - 1e-12), default=0)
            assert likely_length(chance, min_chance, 12) == expected


def test_the_chance_approaches_the_rate_of_right_tokens() -> None:
    generator = random.Random(0)
    for share in (0.2, 0.5, 0.9):
        chances = made(0.5)
        recent = []
        for _ in range(400):
            right = generator.random() < share
            chances.observe(*MATCH, [1], [1 if right else 2])
            recent.append(chances.chance(*MATCH))
        assert abs(sum(recent[200:]) / 200 - share) < 0.08


def test_tokens_after_the_first_wrong_one_do_not_count() -> None:
    one, other = made(0.5), made(0.5)
    one.observe(*MATCH, [1, 2, 3, 4], [1, 9, 3, 4])
    other.observe(*MATCH, [1, 2], [1, 9])
    assert one.chance(*MATCH) == other.chance(*MATCH) == (PRIOR_WEIGHT / 2 + 1) / (PRIOR_WEIGHT + 2)


def test_copied_tokens_beyond_the_output_do_not_count() -> None:
    chances = made(0.5)
    chances.observe(*MATCH, [1, 2, 3], [1])
    assert chances.chance(*MATCH) == (PRIOR_WEIGHT / 2 + 1) / (PRIOR_WEIGHT + 1)


def test_copying_resumes_when_matches_are_right_again() -> None:
    chances = made(0.5)
    for _ in range(200):
        chances.observe(*MATCH, [1], [2])
    assert likely_length(chances.chance(*MATCH), 0.15, 8) == 0
    for _ in range(30):
        chances.observe(*MATCH, [1], [1])
    assert likely_length(chances.chance(*MATCH), 0.15, 8) > 0


def test_origins_and_groups_of_lengths_have_separate_chances() -> None:
    chances = CopyChances()
    before = {
        (origin, length): chances.chance(origin, length) for origin in ("source", "output") for length in range(20)
    }
    chances.observe("source", 2, [1], [2])
    changed = {match for match, chance in before.items() if chances.chance(*match) != chance}
    assert changed == {("source", 2), ("source", 3)}
