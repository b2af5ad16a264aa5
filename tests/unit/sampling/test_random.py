"""Random numbers as functions of (seed, position, purpose): their values, and their distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.sampling import Purpose
from speculative_decoding.sampling.options import MAX_SEED
from speculative_decoding.sampling.random import Draw, categorical, gumbel, random_keys, split, uniform

DRAWN: list[Draw] = [*product((0, 1, 2, 77, MAX_SEED), (1, 2, 3, 511), Purpose)]
PROBS = np.array([0.4, 0.3, 0.2, 0.1, 0.0])
DRAWS = 20_000


def test_keys_differ_by_seed_position_and_use() -> None:
    draws = [*product((0, 1, 2, MAX_SEED), range(200), Purpose)]
    found = {tuple(key) for key in np.array(random_keys(draws)).tolist()}
    assert len(found) == len(draws)


def drawn(made: mx.array, size: int) -> mx.array:
    logits = mx.log(mx.arange(1, size + 1).astype(mx.float32))
    return categorical(mx.broadcast_to(logits, (made.shape[0], size)), made)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "draw",
    [
        uniform,
        lambda made: gumbel(made, 7),
        lambda made: gumbel(made, 300),
        lambda made: drawn(made, 300),
        lambda made: split(made, 5),
    ],
    ids=["uniform", "gumbel, 7", "gumbel, 300", "categorical", "split"],
)
def test_a_draw_gives_the_same_bits_with_and_without_other_draws(draw: Callable[[mx.array], mx.array]) -> None:
    together = draw(random_keys(DRAWN))
    assert together.shape[0] == len(DRAWN) == len(np.unique(random_keys(DRAWN), axis=0))
    for i, one in enumerate(DRAWN):
        assert mx.array_equal(draw(random_keys([one]))[0], together[i])
    assert mx.array_equal(draw(random_keys(DRAWN[::-1])), together[::-1])


@pytest.mark.usefixtures("device")
def test_numbers_are_the_same_in_every_version() -> None:
    """A seed must give the same text in every version. The expected numbers follow from Threefry's definition."""
    made = random_keys([(0, 1, Purpose.ACCEPT), (3, 2, Purpose.NEXT)])
    assert made.tolist() == [[0, 5], [3, 10]]
    bits = [threefry(key, (0, 0))[0] for key in made.tolist()]  # type: ignore[arg-type, union-attr]
    assert np.allclose(np.array(uniform(made)), np.array(bits) / 2**32, atol=1e-7)


def threefry(key: Sequence[int], count: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3)."""
    rotations, mask = ((13, 15, 26, 6), (17, 29, 16, 24)), 2**32 - 1
    words = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = (count[0] + words[0]) & mask, (count[1] + words[1]) & mask
    for group in range(5):
        for turn in rotations[group % 2]:
            x = (x + y) & mask
            y = ((y << turn | y >> (32 - turn)) & mask) ^ x
        x, y = (x + words[(group + 1) % 3]) & mask, (y + words[(group + 2) % 3] + group + 1) & mask
    return x, y


def of_seeds(use: Purpose, count: int = DRAWS) -> mx.array:
    return random_keys([(seed, 4, use) for seed in range(count)])


# Each stream varies one coordinate: the position in a request, the seed, or the token of a draft.
STREAMS: dict[str, mx.array] = {
    "positions": random_keys([(11, position, Purpose.NEXT) for position in range(DRAWS)]),
    "seeds": of_seeds(Purpose.NEXT),
    "tokens of a draft": split(of_seeds(Purpose.DRAFT, DRAWS // 64 + 1), 64).reshape(-1, 2)[:DRAWS],
}


def quantile(freedom: int) -> float:
    """Return the 1 - 1e-4 quantile of chi-square (Wilson and Hilferty's approximation)."""
    return float(freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3)


def fits(found: Any, expected: Any) -> bool:
    """Apply Pearson's chi-square test. Impossible cells must be empty."""
    found, expected = np.ravel(found), np.ravel(expected)
    possible = expected > 0
    statistic = ((found[possible] - expected[possible]) ** 2 / expected[possible]).sum()
    return bool(statistic < quantile(possible.sum() - 1) and not found[~possible].any())


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("made", STREAMS.values(), ids=STREAMS)
def test_draws_follow_the_distribution_and_are_independent(made: mx.array) -> None:
    logits = mx.broadcast_to(mx.log(mx.array(PROBS.astype(np.float32))) + 3.0, (DRAWS, 5))  # not normalized
    ids = np.array(categorical(logits, made))
    assert fits(np.bincount(ids, minlength=5), PROBS * DRAWS)
    pairs = np.zeros((5, 5))
    np.add.at(pairs, (ids[:-1], ids[1:]), 1)
    assert fits(pairs, np.outer(PROBS, PROBS) * (DRAWS - 1))
    assert not fits(np.bincount(ids, minlength=5), [*np.roll(PROBS[:4], 1), 0.0])


@pytest.mark.usefixtures("device")
def test_uniform_and_gumbel_have_uniform_quantiles() -> None:
    made, cells = STREAMS["seeds"], 50
    u = np.array(uniform(made))
    assert u.min() >= 0 and u.max() < 1
    assert fits(np.bincount((u * cells).astype(int), minlength=cells), np.full(cells, DRAWS / cells))
    noise = np.array(gumbel(made[: DRAWS // 4], 4))
    below = np.exp(-np.exp(-noise.astype(np.float64)))  # Gumbel's distribution function
    assert fits(np.bincount((below.ravel() * cells).astype(int), minlength=cells), np.full(cells, DRAWS / cells))


def test_uses_of_one_position_are_independent() -> None:
    cells = 5
    by_use = [(np.array(uniform(of_seeds(use))) * cells).astype(int) for use in Purpose]
    for i, one in enumerate(by_use):
        for other in by_use[:i]:
            pairs = np.zeros((cells, cells))
            np.add.at(pairs, (one, other), 1)
            assert fits(pairs, np.full((cells, cells), DRAWS / cells**2))
