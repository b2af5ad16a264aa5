"""Rules proved by enumeration: every draft of a small vocabulary, every number of accepted tokens, every next token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding import InputError, SamplingParams
from speculative_decoding.decoding.acceptance import (
    ACCEPTANCE,
    AcceptanceRule,
    Block,
    Coupled,
    Greedy,
    Rejection,
    choose_rule,
    residual,
    throw_dice,
)
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


def behind(prefix: Sequence[int], table: Table) -> Table:
    return lambda rest: table((*prefix, *rest))


def one_hot(table: Table) -> Table:
    return lambda prefix: np.eye(VOCAB)[np.argmax(table(prefix))]


def proposals(
    draft: Table, drafted: int, *, stop_after: int | None = None, point_mass: bool = False
) -> tuple[list[tuple[int, ...]], list[float], Draft]:
    """Every draft of `drafted` tokens as a batch: its rows, the chance of each, and what the rule is shown.

    stop_after: the drafter stops behind this token, so the batch is ragged.
    """
    rows = [tuple(row) for row in product(range(VOCAB), repeat=drafted)]
    if point_mass:
        rows = [row for row in rows if all(np.argmax(draft(row[:i])) == row[i] for i in range(drafted))]
    chance = [1.0 if point_mass else float(np.prod([draft(row[:i])[row[i]] for i in range(drafted)])) for row in rows]
    lengths = [row.index(stop_after) + 1 if stop_after in row else drafted for row in rows]
    proposal = Draft(
        mx.array(np.array(rows, dtype=np.uint32).reshape(len(rows), drafted)),
        None if point_mass or drafted == 0 else tables(draft, rows, drafted),
        None if stop_after is None else mx.array(lengths),
    )
    return rows, chance, proposal


def tables(table: Table, rows: Sequence[tuple[int, ...]], count: int) -> mx.array:
    """(rows, count, VOCAB): what the table says behind the first 0 .. count - 1 tokens of each row."""
    stacked = [[table(row[:i]) for i in range(count)] for row in rows]
    return mx.array(np.array(stacked).reshape(len(rows), count, VOCAB).astype(np.float32))


def output_law(
    rule: AcceptanceRule,
    target: Table,
    draft: Table,
    drafted: int,
    *,
    emitted: Table | None = None,
    **settings: Any,
) -> dict[tuple[int, ...], float]:
    """P of every sequence of drafted + 1 tokens. Shorter outputs of a round go on as the target would.

    emitted: the distribution that corrections are drawn from, if it is not the one that the rule looks at.
    """
    emitted = emitted or target
    rows, chance, proposal = proposals(draft, drafted, **settings)
    probs = tables(emitted, rows, drafted + 1)
    stop, weights = rule(proposal, tables(target, rows, drafted + 1))
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


LOSSLESS = [Rejection(), Block()]
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


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("drafted", [0, 1, 2, 3])
def test_coupled_writes_the_token_that_the_noise_chose(drafted: int, settings: dict) -> None:  # type: ignore[type-arg]
    """Given the noise p is one-hot. That the noise follows p is tests/test_sampling.py's part."""
    for seed in range(3):
        chosen = one_hot(random_table(seed))
        law = output_law(
            Coupled(), chosen, one_hot(random_table(seed + 50)), drafted, **(settings | {"point_mass": True})
        )
        assert distance(law, target_law(chosen, drafted + 1)) < 1e-6


def expected_accepted(rule: AcceptanceRule, target: Table, draft: Table, drafted: int, **settings: Any) -> float:
    rows, chance, proposal = proposals(draft, drafted, **settings)
    stop, _ = rule(proposal, tables(target, rows, drafted + 1))
    return float(np.array(chance) @ np.array(stop) @ np.arange(drafted + 1))


def test_block_verification_accepts_what_its_paper_says() -> None:
    """Sun et al., section 2: 10/9 tokens of a draft of two with the token rule, 11/9 with blocks."""

    def target(prefix: Sequence[int]) -> NDArray[np.float64]:
        return np.array([1 / 3, 2 / 3, 0])

    def draft(prefix: Sequence[int]) -> NDArray[np.float64]:
        return np.array([2 / 3, 1 / 3, 0])

    assert expected_accepted(Rejection(), target, draft, 2) == pytest.approx(10 / 9, abs=1e-6)
    assert expected_accepted(Block(), target, draft, 2) == pytest.approx(11 / 9, abs=1e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_block_verification_never_accepts_fewer(settings: dict) -> None:  # type: ignore[type-arg]
    gains = []
    for seed, drafted, sharpness in product(range(8), (1, 2, 3), (0.3, 1.5, 4.0)):
        for target in (random_table(seed, sharpness), one_hot(random_table(seed))):
            tables = target, random_table(seed + 50, sharpness), drafted
            gains.append(
                expected_accepted(Block(), *tables, **settings) - expected_accepted(Rejection(), *tables, **settings)
            )
    assert min(gains) > -1e-6
    if not settings.get("point_mass"):
        assert max(gains) > 0.05


@pytest.mark.parametrize("rule", [Rejection(), Rejection(0.3), Block(), Greedy(), Greedy(0.4)], ids=str)
@pytest.mark.parametrize("point_mass", [True, False])
def test_a_row_of_a_ragged_batch_decides_as_it_would_alone(rule: AcceptanceRule, point_mass: bool) -> None:
    rows, _, ragged = proposals(random_table(51), 3)
    lengths = [i % 4 for i in range(len(rows))]
    assert ragged.probs is not None
    probs = tables(random_table(1), rows, 4)
    q = None if point_mass else ragged.probs
    stop, weights = map(np.array, rule(Draft(ragged.tokens, q, mx.array(lengths)), probs))
    for i, length in enumerate(lengths):
        alone = Draft(ragged.tokens[i : i + 1, :length], None if q is None or length == 0 else q[i : i + 1, :length])
        expected_stop, expected_weights = map(np.array, rule(alone, probs[i : i + 1, : length + 1]))
        assert np.allclose(stop[i, : length + 1], expected_stop[0], atol=1e-6) and not np.any(stop[i, length + 1 :])
        assert np.allclose(weights[i, : length + 1], expected_weights[0], atol=1e-6)


LOSSY = [Rejection(0.1), Rejection(0.5), Rejection(1.0), Rejection(0.0, True), Rejection(0.3, True)]


@pytest.mark.parametrize("point_mass", [False, True])
@pytest.mark.parametrize("rule", LOSSY, ids=str)
def test_the_reported_price_is_the_total_variation(rule: Rejection, point_mass: bool) -> None:
    """At every place of the draft: the law of that token, given that what stands before it was kept."""
    assert not rule.lossless
    for seed in range(3):
        target, draft = random_table(seed), random_table(seed + 50)
        rows, _, proposal = proposals(draft, 3, point_mass=point_mass)
        price = np.array(rule.price(proposal, tables(target, rows, 4)))
        for i, row in enumerate(rows):
            for place in range(3):
                prefix = row[:place]
                here = output_law(rule, behind(prefix, target), behind(prefix, draft), 1, point_mass=point_mass)
                law = np.array([sum(mass for s, mass in here.items() if s[0] == token) for token in range(VOCAB)])
                gap = 0.5 * np.abs(law - target(prefix)).sum()
                assert price[i, place] == pytest.approx(gap, abs=1e-6)
                assert gap > 0 or rule.delta == 0
                if not rule.skip_sample_adjustment:
                    assert gap <= rule.delta + 1e-6


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("rule", LOSSY, ids=str)
def test_prices_add_up_to_a_bound_on_the_whole_output(rule: Rejection, settings: dict) -> None:  # type: ignore[type-arg]
    target, draft = random_table(3), random_table(53)
    rows, chance, proposal = proposals(draft, 3, **settings)
    probs = tables(target, rows, 4)
    stop, price = np.array(rule(proposal, probs)[0]), np.array(rule.price(proposal, probs))
    paid = np.concatenate([np.cumsum(price, axis=1), price.sum(axis=1, keepdims=True)], axis=1)  # behind t accepted
    expected = np.array(chance) @ (stop * paid).sum(axis=1)
    assert distance(output_law(rule, target, draft, 3, **settings), target_law(target, 4)) <= expected + 1e-6


def test_exact_rules_have_no_price() -> None:
    draft = Draft(mx.array([[0, 1]]))
    for rule in (Rejection(), Block(), Coupled(), Greedy()):
        assert rule.lossless and rule.price(draft, mx.full((1, 3, 3), 1 / 3)) is None


def test_without_adjustment_corrections_come_from_the_target() -> None:
    target, draft = random_table(1), random_table(51)
    rows, _, proposal = proposals(draft, 2)
    probs = tables(target, rows, 3)
    _, weights = Rejection(0.0, skip_sample_adjustment=True)(proposal, probs)
    for accepted in range(3):
        left = residual(proposal, probs, weights, mx.full((len(rows),), accepted))
        assert np.allclose(left / left.sum(axis=-1, keepdims=True), probs[:, accepted], atol=1e-6)


def test_lenience_costs_the_share_of_tokens_that_are_not_the_arg_max() -> None:
    logits = mx.log(mx.array([[[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.45, 0.15, 0.4], [0.2, 0.2, 0.6]]]))
    verdict = Greedy(0.5).verdict(Draft(mx.array([[1, 2, 1]], mx.uint32)), logits, SamplingParams(), [0])
    tokens, accepted, prices = verdict.read(Draft(mx.array([[1, 2, 1]], mx.uint32)))
    assert (tokens, accepted, prices) == ([1, 2, 0], 2, [1.0, 0.0, 0.0])


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
        assert Greedy(delta).verdict(draft, mx.log(probs), SamplingParams(), [0]).accepted.tolist() == [kept]


@pytest.mark.parametrize("delta", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("lengths", [None, [0, 1, 2, 3, 4, 4]])
def test_the_greedy_fast_path_decides_as_the_rule(delta: float, lengths: list[int] | None) -> None:
    logits = 2 * mx.random.normal((6, 5, 8), key=mx.random.key(0))
    tokens = mx.argmax(logits, axis=-1)[:, :4]
    tokens = mx.where(mx.random.uniform(shape=tokens.shape, key=mx.random.key(1)) < 0.3, 3, tokens)
    draft = Draft(tokens, None, None if lengths is None else mx.array(lengths))
    stop, _ = Greedy(delta)(draft, mx.softmax(logits, axis=-1))
    verdict = Greedy(delta).verdict(draft, logits, SamplingParams(), [0])
    assert verdict.accepted.tolist() == mx.argmax(stop, axis=1).tolist()
    best = mx.argmax(logits, axis=-1)
    assert verdict.next_token.tolist() == [best[i, n].item() for i, n in enumerate(verdict.accepted.tolist())]


@pytest.mark.parametrize("lengths", [None, [0, 1, 2, 3, 4, 4]])
def test_the_coupled_fast_path_decides_as_the_rule(lengths: list[int] | None) -> None:
    logits, sampling = 2 * mx.random.normal((1, 5, 8), key=mx.random.key(0)), SamplingParams(temperature=0.8, seed=3)
    best = mx.argmax(sampling.perturbed(logits, None, 6), axis=-1)
    wrong_at = mx.array([[i == place for i in range(4)] for place in range(6)])
    draft = Draft(
        mx.where(wrong_at, (best[:, :4] + 1) % 8, best[:, :4]), None, None if lengths is None else mx.array(lengths)
    )
    stop, _ = Coupled()(draft, mx.broadcast_to((mx.arange(8) == best[..., None]).astype(mx.float32), (6, 5, 8)))
    for row in range(6):
        one = Draft(draft.tokens[row : row + 1], None, None if lengths is None else draft.lengths[row : row + 1])  # type: ignore[index]
        verdict = Coupled().verdict(one, logits, sampling, [0] * 6)
        assert stop[row].tolist() == [float(t == verdict.accepted.item()) for t in range(5)]
        assert verdict.next_token.item() == best[0, verdict.accepted.item()].item()


@pytest.mark.parametrize("rule", LOSSLESS, ids=str)
def test_the_dice_follow_stop_and_residual(rule: AcceptanceRule) -> None:
    """20,000 throws against the exact law of (accepted, next token), 5 standard deviations."""
    rows = 20_000
    target, drafted = random_table(1), (2, 0)
    q = [random_table(51)(drafted[:i]) for i in range(2)]
    p = [target(drafted[:i]) for i in range(3)]

    def repeat(tables: list[NDArray[np.float64]]) -> mx.array:
        return mx.broadcast_to(mx.array(np.array(tables).astype(np.float32)), (rows, len(tables), VOCAB))

    draft = Draft(mx.broadcast_to(mx.array([drafted]), (rows, 2)), repeat(q))
    stop, weights = rule(draft, repeat(p))
    thrown = throw_dice(draft, repeat(p), stop, weights, accept_key=key(5, 1, Use.ACCEPT), next_key=key(5, 1, Use.NEXT))
    found = np.zeros((3, VOCAB))
    np.add.at(found, tuple(map(np.array, thrown)), 1 / rows)
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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"acceptance": "typical"}, "acceptance must be one of rejection, block, coupled, not 'typical'"),
        ({"acceptance": "block", "delta": 0.1}, "delta 0.1 relaxes"),
        ({"acceptance": "coupled", "delta": 0.1}, "delta 0.1 relaxes"),
        ({"acceptance": "block", "skip_sample_adjustment": True}, "skip_sample_adjustment belongs"),
        ({"delta": 2.0}, "delta must be"),
    ],
)
def test_options_that_do_not_fit_together_are_named(options: dict[str, Any], named: str) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(InputError, match=named):
            choose_rule(SamplingParams(temperature), **options)


def test_at_temperature_0_every_exact_rule_is_the_greedy_one() -> None:
    assert [choose_rule(SamplingParams(), name) for name in ACCEPTANCE] == [Greedy()] * 3
    assert [choose_rule(SamplingParams(1.0), name) for name in ACCEPTANCE] == [Rejection(), Block(), Coupled()]
