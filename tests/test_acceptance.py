"""Rules proved by enumeration: every draft of a small vocabulary, every number of accepted tokens, every next token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding import InputError, SamplingParams
from speculative_decoding.acceptance import AcceptanceRule, Greedy, Rejection, residual, throw_dice
from speculative_decoding.drafters import Draft
from speculative_decoding.sampling import Use, key

VOCAB = 3
Table = Callable[[Sequence[int]], NDArray[np.float64]]  # what was written so far -> the next token's distribution


def random_table(seed: int, sharpness: float = 1.5) -> Table:
    def table(prefix: Sequence[int]) -> NDArray[np.float64]:
        generator = np.random.default_rng([seed, len(prefix), *prefix])
        weights = np.exp(sharpness * generator.normal(size=VOCAB))
        return weights / weights.sum()

    return table


def one_hot(table: Table) -> Table:
    return lambda prefix: np.eye(VOCAB)[np.argmax(table(prefix))]


def output_law(
    rule: AcceptanceRule,
    target: Table,
    draft: Table,
    drafted: int,
    *,
    emitted: Table | None = None,
    stop_after: int | None = None,
    point_mass: bool = False,
) -> dict[tuple[int, ...], float]:
    """P of every sequence of drafted + 1 tokens. Shorter outputs of a round go on as the target would.

    emitted: the distribution that corrections are drawn from, if it is not the one that the rule looks at.
    stop_after: the drafter stops behind this token.
    """
    emitted = emitted or target
    rows = [tuple(row) for row in product(range(VOCAB), repeat=drafted)]
    if point_mass:
        rows = [row for row in rows if all(np.argmax(draft(row[:i])) == row[i] for i in range(drafted))]
    chance = [np.prod([draft(row[:i])[row[i]] for i in range(drafted)]) if not point_mass else 1.0 for row in rows]

    def tables(table: Table, count: int) -> mx.array:
        stacked = [[table(row[:i]) for i in range(count)] for row in rows]
        return mx.array(np.array(stacked).reshape(len(rows), count, VOCAB).astype(np.float32))

    lengths = [row.index(stop_after) + 1 if stop_after in row else drafted for row in rows]
    proposal = Draft(
        mx.array(np.array(rows, dtype=np.uint32).reshape(len(rows), drafted)),
        None if point_mass or drafted == 0 else tables(draft, drafted),
        None if stop_after is None else mx.array(lengths),
    )
    seen, probs = tables(target, drafted + 1), tables(emitted, drafted + 1)
    stop, weights = rule(proposal, seen)
    law: dict[tuple[int, ...], float] = {}
    for accepted in range(drafted + 1):
        left = np.array(residual(proposal, probs, weights, mx.full((len(rows),), accepted)), dtype=np.float64)
        for i, row in enumerate(rows):
            mass = chance[i] * np.array(stop)[i, accepted]
            if mass == 0:
                continue
            for token, share in enumerate(left[i] / left[i].sum()):
                continue_with(law, (*row[:accepted], token), mass * share, drafted + 1, emitted)
    return law


def continue_with(law: dict[tuple[int, ...], float], prefix: tuple[int, ...], mass: float, size: int, p: Table) -> None:
    if len(prefix) == size:
        law[prefix] = law.get(prefix, 0.0) + mass
        return
    for token, share in enumerate(p(prefix)):
        continue_with(law, (*prefix, token), mass * share, size, p)


def target_law(target: Table, size: int) -> dict[tuple[int, ...], float]:
    law: dict[tuple[int, ...], float] = {}
    continue_with(law, (), 1.0, size, target)
    return law


def distance(one: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> float:
    """Total variation."""
    return 0.5 * sum(abs(one.get(k, 0.0) - other.get(k, 0.0)) for k in one.keys() | other.keys())


LOSSLESS = [Rejection()]
SETTINGS = [{}, {"stop_after": 1}, {"point_mass": True}, {"point_mass": True, "stop_after": 0}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("drafted", [0, 1, 2, 3])
@pytest.mark.parametrize("rule", LOSSLESS, ids=str)
def test_a_lossless_rule_keeps_the_law_of_the_target(rule: AcceptanceRule, drafted: int, settings: dict) -> None:  # type: ignore[type-arg]
    assert rule.lossless
    for seed in range(3):
        for target in (random_table(seed), one_hot(random_table(seed))):
            law = output_law(rule, target, random_table(seed + 50), drafted, **settings)
            assert distance(law, target_law(target, drafted + 1)) < 1e-6


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("drafted", [0, 1, 2, 3])
def test_greedy_writes_what_the_target_prefers(drafted: int, settings: dict) -> None:  # type: ignore[type-arg]
    for seed in range(3):
        target = random_table(seed)
        law = output_law(Greedy(), target, random_table(seed + 50), drafted, emitted=one_hot(target), **settings)
        assert distance(law, target_law(one_hot(target), drafted + 1)) < 1e-6


@pytest.mark.parametrize("delta", [0.1, 0.5, 1.0])
def test_relaxation_costs_at_most_delta_per_token(delta: float) -> None:
    """With one drafted token the total variation is the acceptance gained: beta(delta) - beta <= delta."""
    assert not Rejection(delta).lossless
    for seed in range(5):
        target, draft = random_table(seed), random_table(seed + 50)
        p, q = target(()), draft(())
        gained = np.sum(q * np.minimum(1, p / q + delta)) - np.sum(np.minimum(p, q))
        # the law of the first token alone
        law = output_law(Rejection(delta), target, draft, 1)
        first = {(token,): sum(mass for row, mass in law.items() if row[0] == token) for token in range(VOCAB)}
        assert distance(first, target_law(target, 1)) == pytest.approx(gained, abs=1e-6)
        assert 0 < gained <= delta


def test_delta_one_keeps_every_drafted_token() -> None:
    draft = Draft(mx.array([[0, 1]]), mx.array([[[1.0, 0, 0], [0.1, 0.9, 0]]]))
    for rule in (Rejection(1.0), Greedy(1.0)):
        stop, _ = rule(draft, mx.array([[[0.0, 0.5, 0.5]] * 3]))
        assert stop.tolist() == [[0, 0, 1]]


def test_lenience_keeps_a_token_down_to_its_share_of_the_maximum() -> None:
    """p(x) >= (1 - delta) * max p: 0.3 against 0.5 is kept from delta = 0.4 on."""
    draft = Draft(mx.array([[1]]))
    probs = mx.array([[[0.5, 0.3, 0.2]] * 2])
    for delta, kept in ((0.0, 0), (0.39, 0), (0.41, 1), (1.0, 1)):
        assert Greedy(delta)(draft, probs)[0].tolist() == [[1 - kept, kept]]
        assert Greedy(delta).verdict(draft, mx.log(probs), SamplingParams(), 1).accepted.tolist() == [kept]


@pytest.mark.parametrize("delta", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("lengths", [None, [0, 1, 2, 3, 4, 4]])
def test_the_greedy_fast_path_decides_as_the_rule(delta: float, lengths: list[int] | None) -> None:
    logits = 2 * mx.random.normal((6, 5, 8), key=mx.random.key(0))
    tokens = mx.argmax(logits, axis=-1)[:, :4]
    tokens = mx.where(mx.random.uniform(shape=tokens.shape, key=mx.random.key(1)) < 0.3, 3, tokens)
    draft = Draft(tokens, None, None if lengths is None else mx.array(lengths))
    stop, _ = Greedy(delta)(draft, mx.softmax(logits, axis=-1))
    verdict = Greedy(delta).verdict(draft, logits, SamplingParams(), 1)
    assert verdict.accepted.tolist() == mx.argmax(stop, axis=1).tolist()
    best = mx.argmax(logits, axis=-1)
    assert verdict.next_token.tolist() == [best[i, n].item() for i, n in enumerate(verdict.accepted.tolist())]


def test_the_dice_follow_stop_and_residual() -> None:
    """20,000 throws against the exact law of (accepted, next token), 5 standard deviations."""
    rows = 20_000
    target, drafted = random_table(1), (2, 0)
    q = [random_table(51)(drafted[:i]) for i in range(2)]
    p = [target(drafted[:i]) for i in range(3)]

    def repeat(tables: list[NDArray[np.float64]]) -> mx.array:
        return mx.broadcast_to(mx.array(np.array(tables).astype(np.float32)), (rows, len(tables), VOCAB))

    draft = Draft(mx.broadcast_to(mx.array([drafted]), (rows, 2)), repeat(q))
    stop, weights = Rejection()(draft, repeat(p))
    verdict = throw_dice(
        draft, repeat(p), stop, weights, accept_key=key(5, 1, Use.ACCEPT), next_key=key(5, 1, Use.NEXT)
    )
    found = np.zeros((3, VOCAB))
    np.add.at(found, (np.array(verdict.accepted), np.array(verdict.next_token)), 1 / rows)
    for accepted in range(3):
        left = np.array(residual(draft, repeat(p), weights, mx.full((rows,), accepted)))[0]
        expected = np.array(stop)[0, accepted] * left / left.sum()
        assert np.all(np.abs(found[accepted] - expected) <= 5 * np.sqrt(expected / rows) + 1e-9)


def test_an_empty_residual_falls_back_to_the_target() -> None:
    p = mx.array([[[0.25, 0.75], [0.5, 0.5]]])
    draft = Draft(mx.array([[1]]), p[:, :1])
    assert residual(draft, p, mx.ones((1, 2)), mx.array([0])).tolist() == [[0.25, 0.75]]


def test_delta_outside_its_range_is_named() -> None:
    for rule in (Rejection, Greedy):
        for delta in (-0.1, 1.1, float("nan")):
            with pytest.raises(InputError, match="delta"):
                rule(delta)
