"""Proves acceptance rules by enumeration: all drafts of a small vocabulary, accepted counts and next tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculative_decoding.decoding.acceptance import (
    RULES,
    AcceptanceResult,
    AcceptanceRule,
    Block,
    Coupled,
    Greedy,
    Rejection,
    residual,
    rule_for_rows,
    sample_acceptance,
)
from speculative_decoding.decoding.request import Request
from speculative_decoding.decoding.results import Round
from speculative_decoding.decoding.round import Batch, commit, verify
from speculative_decoding.draft_length import FixedLength
from speculative_decoding.drafters import Draft, NoDrafter, RequestView
from speculative_decoding.drafters.base import num_shared
from speculative_decoding.sampling import ACCEPTANCE, GenerationOptions, History, Purpose, perturbed_logprobs
from speculative_decoding.sampling.random import random_keys
from tests.support.tiny import NoText

VOCAB = 3
Table = Callable[[tuple[int, ...]], NDArray[np.float64]]  # prefix -> the next token's distribution


@cache
def random_table(seed: int, sharpness: float = 1.5) -> Table:
    @cache
    def table(prefix: tuple[int, ...]) -> NDArray[np.float64]:
        generator = np.random.default_rng([seed, len(prefix), *prefix])
        weights = np.exp(sharpness * generator.normal(size=VOCAB))
        return weights / weights.sum()

    return table


def after(prefix: tuple[int, ...], table: Table) -> Table:
    return lambda rest: table((*prefix, *rest))


def one_hot(table: Table) -> Table:
    return lambda prefix: np.eye(VOCAB)[np.argmax(table(prefix))]


def proposals(
    draft: Table, drafted: int, *, stop_after: int | None = None, any_length: bool = False, point_mass: bool = False
) -> tuple[list[tuple[int, ...]], list[float], Draft]:
    """Return all drafts of `drafted` tokens as one batch: the rows, their probabilities, and the `Draft`.

    stop_after: a token after which the drafter stops.
    any_length: all lengths from 0 are equally likely.
    With either option the batch is ragged, padded with zeros as by `merged`.
    """
    rows = [tuple(row) for row in product(range(VOCAB), repeat=drafted)]
    if point_mass:
        rows = [row for row in rows if all(np.argmax(draft(row[:i])) == row[i] for i in range(drafted))]
    chance = [1.0 if point_mass else float(np.prod([draft(row[:i])[row[i]] for i in range(drafted)])) for row in rows]
    lengths = [row.index(stop_after) + 1 if stop_after in row else drafted for row in rows]
    if any_length:
        lengths = [length for length in range(drafted + 1) for _ in rows]
        rows, chance = rows * (drafted + 1), [each / (drafted + 1) for each in chance] * (drafted + 1)
    inside = mx.arange(drafted)[None] < mx.array(lengths)[:, None]
    tokens = mx.array(np.array(rows, dtype=np.uint32).reshape(len(rows), drafted))
    proposal = Draft(
        mx.where(inside, tokens, mx.zeros_like(tokens)),
        None if point_mass or drafted == 0 else tables(draft, rows, drafted) * inside[..., None],
        lengths if any_length or stop_after is not None else None,
    )
    return rows, chance, proposal


def tables(table: Table, rows: Sequence[tuple[int, ...]], count: int) -> mx.array:
    """Return the distributions after the first 0 .. count - 1 tokens of each row: (rows, count, VOCAB)."""
    stacked = [[table(row[:i]) for i in range(count)] for row in rows]
    return mx.array(np.array(stacked).reshape(len(rows), count, VOCAB).astype(np.float32))


def output_distribution(
    rule: AcceptanceRule,
    target: Table,
    draft: Table,
    drafted: int,
    *,
    emitted: Table | None = None,
    **settings: Any,
) -> dict[tuple[int, ...], float]:
    """Return the probability of every sequence of drafted + 1 tokens. The target continues shorter outputs.

    emitted: the distribution of corrections, if it differs from the rule's.
    """
    emitted = emitted or target
    rows, chance, proposal = proposals(draft, drafted, **settings)
    probs = tables(emitted, rows, drafted + 1)
    stop, weights = rule(proposal, tables(target, rows, drafted + 1))
    probs_of: dict[tuple[int, ...], float] = {}
    for accepted in range(drafted + 1):
        left = np.array(residual(proposal, probs, weights, mx.full((len(rows),), accepted)), dtype=np.float64)
        for i, row in enumerate(rows):
            mass = chance[i] * np.array(stop)[i, accepted]
            if mass == 0:
                continue
            for token, share in enumerate(left[i] / left[i].sum()):
                continue_with(probs_of, (*row[:accepted], token), mass * share, drafted + 1, emitted)
    return probs_of


def continue_with(
    probs_of: dict[tuple[int, ...], float], prefix: tuple[int, ...], mass: float, size: int, p: Table
) -> None:
    if len(prefix) == size:
        probs_of[prefix] = probs_of.get(prefix, 0.0) + mass
        return
    for token, share in enumerate(p(prefix)):
        continue_with(probs_of, (*prefix, token), mass * share, size, p)


def target_distribution(target: Table, size: int) -> dict[tuple[int, ...], float]:
    probs_of: dict[tuple[int, ...], float] = {}
    continue_with(probs_of, (), 1.0, size, target)
    return probs_of


def distance(one: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> float:
    """Return the total variation distance."""
    return 0.5 * sum(abs(one.get(k, 0.0) - other.get(k, 0.0)) for k in one.keys() | other.keys())


# A lossless rule is tested by enumeration, unless its text for a seed does not depend on drafts, which is tested below
LOSSLESS = [RULES[name]() for name, facts in ACCEPTANCE.items() if "lossless" in facts and "comparable" not in facts]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"stop_after": 1},
    {"any_length": True},
    {"point_mass": True},
    {"point_mass": True, "any_length": True},
]
# A draft of any length covers drafts of one and two tokens.
every_draft = pytest.mark.parametrize(("drafted", "settings"), [(0, {}), *((3, each) for each in SETTINGS)], ids=str)


@pytest.mark.usefixtures("device")
@every_draft
@pytest.mark.parametrize("rule", LOSSLESS, ids=str)
def test_lossless_rules_keep_the_target_distribution(
    rule: AcceptanceRule, drafted: int, settings: dict[str, Any]
) -> None:
    for seed in range(3):
        for target in (random_table(seed), one_hot(random_table(seed))):
            probs_of = output_distribution(rule, target, random_table(seed + 50), drafted, **settings)
            assert distance(probs_of, target_distribution(target, drafted + 1)) < 1e-6


@pytest.mark.usefixtures("device")
@every_draft
def test_greedy_generates_the_arg_max(drafted: int, settings: dict[str, Any]) -> None:
    for seed in range(3):
        target = random_table(seed)
        probs_of = output_distribution(
            Greedy(), target, random_table(seed + 50), drafted, emitted=one_hot(target), **settings
        )
        assert distance(probs_of, target_distribution(one_hot(target), drafted + 1)) < 1e-6


@pytest.mark.usefixtures("device")
@every_draft
def test_coupled_generates_the_token_that_the_noise_selects(drafted: int, settings: dict[str, Any]) -> None:
    """Given the noise, p is one-hot. tests/unit/sampling/test_distribution.py proves that the noise follows p."""
    for seed in range(3):
        chosen = one_hot(random_table(seed))
        probs_of = output_distribution(
            Coupled(), chosen, one_hot(random_table(seed + 50)), drafted, **(settings | {"point_mass": True})
        )
        assert distance(probs_of, target_distribution(chosen, drafted + 1)) < 1e-6


def expected_accepted(rule: AcceptanceRule, target: Table, draft: Table, drafted: int, **settings: Any) -> float:
    rows, chance, proposal = proposals(draft, drafted, **settings)
    stop, _ = rule(proposal, tables(target, rows, drafted + 1))
    return float(np.array(chance) @ np.array(stop) @ np.arange(drafted + 1))


def test_block_verification_accepts_as_many_tokens_as_in_its_paper() -> None:
    """Sun et al., section 2: 10/9 tokens of a draft of two with the token rule, 11/9 with blocks."""

    def target(prefix: tuple[int, ...]) -> NDArray[np.float64]:
        return np.array([1 / 3, 2 / 3, 0])

    def draft(prefix: tuple[int, ...]) -> NDArray[np.float64]:
        return np.array([2 / 3, 1 / 3, 0])

    assert expected_accepted(Rejection(), target, draft, 2) == pytest.approx(10 / 9, abs=1e-6)
    assert expected_accepted(Block(), target, draft, 2) == pytest.approx(11 / 9, abs=1e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_block_verification_never_accepts_fewer_tokens_than_the_token_rule(settings: dict[str, Any]) -> None:
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


def row_of(count: int = 1, **options: Any) -> RequestView:
    """Make a request with `count` decoder tokens, including the start token."""
    return RequestView(GenerationOptions(**options), [1], [0, *range(1, count)])


# Options of the rows of a batch, by rule. No two rows of a rule have the same options.
SAMPLED: list[dict[str, Any]] = [
    {"seed": 1},
    {"seed": 2, "temperature": 0.6, "top_k": 4},
    {"seed": 3, "top_p": 0.8},
    {"seed": 4, "temperature": 1.7, "min_p": 0.1, "repetition_penalty": 1.4},
    {"seed": 5, "top_k": 5, "top_p": 0.9, "repetition_penalty": 0.8},
    {"seed": 2, "temperature": 2.5},
]
DELTAS = [0.0, 0.2, 0.0, 0.7, 0.05, 1.0]
KINDS: dict[str, list[dict[str, Any]]] = {
    "greedy": [{"seed": i, "repetition_penalty": penalty} for i, penalty in enumerate((1.0, 3.0, 0.4, 1.0, 5.0, 0.2))],
    "lenient": [{"seed": i, "delta": delta, "repetition_penalty": 1 + delta} for i, delta in enumerate(DELTAS)],
    "rejection": [own | {"acceptance": "rejection"} for own in SAMPLED],
    "relaxed": [own | {"delta": delta, "acceptance": "rejection"} for own, delta in zip(SAMPLED, DELTAS, strict=True)],
    "block": [own | {"acceptance": "block"} for own in SAMPLED],
    "coupled": SAMPLED,
}
KINDS = {
    name: [({"temperature": 1.0} if name not in ("greedy", "lenient") else {}) | own for own in rows]
    for name, rows in KINDS.items()
}
KINDS["of all kinds"] = [rows[i] for i in range(6) for rows in KINDS.values()]
MOST, WIDE = 4, 9  # draft tokens; vocabulary size


def verified_together(
    options: Sequence[GenerationOptions], draft: Draft, logits: mx.array, free: Sequence[int] = (), end: int = -1
) -> dict[int, Round]:
    """Verify rows with these options in one batch.

    free: slots without a request.
    end: a token that ends a row.
    """
    rows: list[Request | None] = [
        None
        if slot in free
        else Request(own, [1], past_of(own), slot, draft_length=FixedLength(MOST), streamer=NoText({end}.__contains__))
        for slot, own in enumerate(options)
    ]
    batch = Batch(None, NoDrafter(), None, rows)  # type: ignore[arg-type]  # verification needs no model
    rounds = commit(batch, draft, {}, verify(batch, draft, logits))
    return {request.slot: round for request, round in rounds.items()}


def past_of(options: GenerationOptions) -> list[int]:
    """Return decoder tokens whose content and length differ between rows."""
    written = np.random.default_rng(options.seed + 1).integers(0, WIDE, 1 + 2 * options.seed)
    return [0, *written.tolist()]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("kind", "certain"), [*product(KINDS, [False]), *product(("rejection", "block", "of all kinds"), [True])]
)
def test_row_of_a_batch_is_verified_as_a_single_row(kind: str, certain: bool) -> None:
    """Bit for bit: accepted tokens, next token, total variation, log-probabilities."""
    options = [GenerationOptions(logprobs=True, max_tokens=50, **own) for own in KINDS[kind] * 3]
    count = len(options)
    logits = 2 * mx.random.normal((count, MOST + 1, WIDE), key=mx.random.key(1))
    q = mx.softmax(logits[:, :MOST] + mx.random.normal((count, MOST, WIDE), key=mx.random.key(2)), axis=-1)
    tokens = mx.random.categorical(mx.log(q), key=mx.random.key(3)).astype(mx.uint32)
    if certain or kind in ("greedy", "lenient", "coupled"):
        best = mx.argmax(logits[:, :MOST], axis=-1).astype(mx.uint32)
        tokens, q = mx.where(mx.arange(count)[:, None] % 3 == 0, best, tokens), None
    lengths = [slot % (MOST + 1) for slot in range(count)]
    free = {2, count - 1}
    found = verified_together(options, Draft(tokens, q, lengths), logits, [*free])
    assert found.keys() == set(range(count)) - free
    for slot, outcome in found.items():
        size = lengths[slot]
        own_q = None if q is None or not size else q[slot : slot + 1, :size]
        alone = Draft(tokens[slot : slot + 1, :size], own_q)
        assert verified_together([options[slot]], alone, logits[slot : slot + 1, : size + 1]) == {0: outcome}
    assert {0, 1} <= {outcome.accepted for outcome in found.values()}  # some first tokens are rejected, some accepted
    lossy = kind in ("lenient", "relaxed", "of all kinds")
    assert lossy == any(outcome.total_variation > 0 for outcome in found.values())


@pytest.mark.parametrize("point_mass", [False, True])
@pytest.mark.parametrize("rule", [Rejection(0.1), Rejection(1.0)], ids=str)
def test_reported_total_variation_is_exact(rule: Rejection, point_mass: bool) -> None:
    """The test covers every position of the draft, given that all earlier tokens were accepted."""
    for seed in range(3):
        target, draft = random_table(seed), random_table(seed + 50)
        rows, _, proposal = proposals(draft, 3, point_mass=point_mass)
        price = np.array(rule.total_variation(proposal, tables(target, rows, 4)))
        for place in range(3):
            for prefix in {row[:place] for row in rows}:
                here = output_distribution(rule, after(prefix, target), after(prefix, draft), 1, point_mass=point_mass)
                probs_of = np.array([sum(mass for s, mass in here.items() if s[0] == token) for token in range(VOCAB)])
                gap = 0.5 * np.abs(probs_of - target(prefix)).sum()
                prices = [price[i, place] for i, row in enumerate(rows) if row[:place] == prefix]
                assert prices == pytest.approx([gap] * len(prices), abs=1e-6)
                assert 0 < gap <= rule.delta + 1e-6


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_total_variations_bound_that_of_the_whole_output(settings: dict[str, Any]) -> None:
    rule = Rejection(0.5)
    target, draft = random_table(3), random_table(53)
    rows, chance, proposal = proposals(draft, 3, **settings)
    probs = tables(target, rows, 4)
    stop, price = np.array(rule(proposal, probs)[0]), np.array(rule.total_variation(proposal, probs))
    paid = np.cumsum(np.pad(price, [(0, 0), (0, 1)]), axis=1)  # after t accepted tokens
    expected = np.array(chance) @ (stop * paid).sum(axis=1)
    found = output_distribution(rule, target, draft, 3, **settings)
    assert distance(found, target_distribution(target, 4)) <= expected + 1e-6


def test_only_committed_tokens_count_for_the_total_variation() -> None:
    """The third token does not count, because the second is rejected, or because the output ends before it."""
    logits = mx.log(mx.array([[[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.45, 0.15, 0.4], [0.2, 0.2, 0.6]]]))
    lenient = GenerationOptions(delta=0.5)
    (outcome,) = verified_together([lenient], Draft(mx.array([[1, 0, 2]], mx.uint32)), logits).values()
    assert (outcome.tokens, outcome.accepted, outcome.total_variation) == ([1, 2], 1, 1.0)
    for end, tokens, accepted, price in ((1, [1], 1, 1.0), (0, [1, 2, 2, 2], 3, 2.0), (2, [1, 2], 2, 1.0)):
        draft = Draft(mx.array([[1, 2, 2]], mx.uint32))
        (outcome,) = verified_together([lenient], draft, logits, end=end).values()
        assert (outcome.tokens, outcome.accepted, outcome.total_variation) == (tokens, accepted, price)


def test_delta_one_accepts_every_draft_token() -> None:
    draft = Draft(mx.array([[0, 1]]), mx.array([[[1.0, 0, 0], [0.1, 0.9, 0]]]))
    for rule in (Rejection(1.0), Greedy(1.0)):
        stop, _ = rule(draft, mx.array([[[0.0, 0.5, 0.5]] * 3]))
        assert stop.tolist() == [[0, 0, 1]]


def test_lenience_accepts_tokens_down_to_a_share_of_the_maximum() -> None:
    """p(x) >= (1 - delta) * max p: 0.3 against 0.5 is accepted for delta >= 0.4."""
    draft = Draft(mx.array([[1]]))
    probs = mx.array([[[0.5, 0.3, 0.2]] * 2])
    for delta, kept in ((0.0, 0), (0.39, 0), (0.41, 1), (1.0, 1)):
        assert Greedy(delta)(draft, probs)[0].tolist() == [[1 - kept, kept]]
        assert on_host(draft, Greedy(delta).decide(draft, mx.log(probs), [row_of()])) == [(kept, 0)]


RAGGED = [None, [0, 1, 2, 3, 4, 4]]


def on_host(draft: Draft, result: AcceptanceResult) -> list[tuple[int, int]]:
    """Return each row's number of accepted tokens, and its next token."""
    next_tokens: Any = result.next_token.tolist()
    if result.accepted is not None:
        return [*zip(result.accepted.tolist(), next_tokens, strict=True)]  # type: ignore[arg-type]
    accepted = [num_shared(*row) for row in zip(draft.to_lists(), next_tokens, strict=True)]
    return [(count, row[count]) for count, row in zip(accepted, next_tokens, strict=True)]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("delta", [0.0, mx.array([[0.0], [0.3], [0.5], [0.0], [0.7], [1.0]])], ids=["exact", "lenient"])
@pytest.mark.parametrize("lengths", RAGGED)
def test_greedy_fast_path_equals_the_rule(delta: float | mx.array, lengths: list[int] | None) -> None:
    logits = 2 * mx.random.normal((6, 5, 8), key=mx.random.key(0))
    tokens = mx.argmax(logits, axis=-1)[:, :4]
    tokens = mx.where(mx.random.uniform(shape=tokens.shape, key=mx.random.key(1)) < 0.3, 3, tokens)
    draft = Draft(tokens, None, lengths)
    rule = Greedy(delta)
    stop, _ = rule(draft, mx.softmax(logits, axis=-1))
    best = mx.argmax(logits, axis=-1)
    expected = [(count, best[i, count].item()) for i, count in enumerate(np.argmax(np.array(stop), axis=1).tolist())]
    assert on_host(draft, rule.decide(draft, logits, [row_of()] * 6)) == expected


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("lengths", RAGGED)
def test_coupled_fast_path_equals_the_rule(lengths: list[int] | None) -> None:
    """Six rows share the seed and history, and each has a wrong token at a different position."""
    logits, row = 2 * mx.random.normal((1, 5, 8), key=mx.random.key(0)), row_of(6, temperature=0.8, seed=3)
    past = History([row.decoder_tokens], mx.zeros((1, 4), mx.uint32))
    best = mx.argmax(perturbed_logprobs(logits, [row.options], past), axis=-1)
    wrong_at = mx.array([[i == place for i in range(4)] for place in range(6)])
    draft = Draft(mx.where(wrong_at, (best[:, :4] + 1) % 8, best[:, :4]), None, lengths)
    stop, _ = Coupled()(draft, mx.broadcast_to((mx.arange(8) == best[..., None]).astype(mx.float32), (6, 5, 8)))
    verdict = Coupled().decide(draft, mx.broadcast_to(logits, (6, 5, 8)), [row] * 6)
    expected = [(count, best[0, count].item()) for count in np.argmax(np.array(stop), axis=1).tolist()]
    assert on_host(draft, verdict) == expected
    assert stop.tolist() == [[float(t == count) for t in range(5)] for count, _ in expected]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("rule", LOSSLESS, ids=str)
def test_sample_acceptance_follows_stop_and_residual(rule: AcceptanceRule) -> None:
    """20,000 samples match the exact distribution of (accepted, next token) within 5 standard deviations."""
    rows = 20_000
    target, drafted = random_table(1), (2, 0)
    q = [random_table(51)(drafted[:i]) for i in range(2)]
    p = [target(drafted[:i]) for i in range(3)]

    def repeat(tables: list[NDArray[np.float64]]) -> mx.array:
        return mx.broadcast_to(mx.array(np.array(tables).astype(np.float32)), (rows, len(tables), VOCAB))

    draft = Draft(mx.broadcast_to(mx.array([drafted]), (rows, 2)), repeat(q))
    stop, weights = rule(draft, repeat(p))
    accept_keys, next_keys = (
        random_keys([(seed, 1, use) for seed in range(rows)]) for use in (Purpose.ACCEPT, Purpose.NEXT)
    )
    thrown = sample_acceptance(draft, repeat(p), stop, weights, accept_keys, next_keys)
    found = np.zeros((3, VOCAB))
    np.add.at(found, tuple(map(np.array, thrown)), 1 / rows)
    for accepted in range(3):
        left = np.array(residual(draft, repeat(p), weights, mx.full((rows,), accepted)))[0]
        expected = np.array(stop)[0, accepted] * left / left.sum()
        assert np.all(np.abs(found[accepted] - expected) <= 5 * np.sqrt(expected / rows) + 1e-9)


@pytest.mark.usefixtures("device")
def test_empty_residual_falls_back_to_the_target() -> None:
    p = mx.array([[[0.25, 0.75], [0.5, 0.5]]])
    draft = Draft(mx.array([[1]]), p[:, :1])
    assert residual(draft, p, mx.ones((1, 2)), mx.array([0])).tolist() == [[0.25, 0.75]]


def test_every_lossless_rule_is_greedy_at_temperature_0() -> None:
    chosen = [GenerationOptions(temperature=t, acceptance=name) for t in (0.0, 1.0) for name in ACCEPTANCE]
    assert [rule_for_rows([options]) for options in chosen] == [Greedy()] * 3 + [Rejection(), Block(), Coupled()]
