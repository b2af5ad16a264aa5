"""Probabilities against four elements computed by hand, and against Hugging Face's processors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.sampling import (
    GenerationOptions,
    History,
    logprobs,
    perturbed_logprobs,
    processed_logits,
    shifted_logprobs,
)
from tests.support.device import within
from tests.support.paths import GOLDENS as GOLDENS_FOLDER

GOLDENS = json.loads((GOLDENS_FOLDER / "processors.json").read_text())["cases"]
PROBS = [0.1, 0.2, 0.3, 0.4]


def sampled(**settings: Any) -> GenerationOptions:
    return GenerationOptions(**({"temperature": 1.0} | settings))


def probs_of(logits: list[float], history: list[int], **settings: Any) -> list[float]:
    found: list[list[list[float]]] = mx.exp(
        logprobs(mx.array([[logits]]), [sampled(**settings)], History([history]))
    ).tolist()  # type: ignore[assignment]
    return found[0][0]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 1}, [0, 0, 0, 0.4]),
        ({"top_k": 3}, [0, 0.2, 0.3, 0.4]),
        ({"top_k": 9}, PROBS),
        ({"top_p": 0.35}, [0, 0, 0, 0.4]),  # the first id reaches 0.35
        ({"top_p": 0.45}, [0, 0, 0.3, 0.4]),
        ({"top_p": 0.85}, [0, 0.2, 0.3, 0.4]),
        ({"top_p": 1e-9}, [0, 0, 0, 0.4]),  # at least one id is kept
        ({"min_p": 0.6}, [0, 0, 0.3, 0.4]),
        ({"min_p": 1.0}, [0, 0, 0, 0.4]),
        ({"temperature": 0.5}, [0.01, 0.04, 0.09, 0.16]),
        ({"temperature": 0.5, "min_p": 0.3}, [0, 0, 0.09, 0.16]),  # temperature comes before min_p
        ({"top_k": 2, "top_p": 0.5}, [0, 0, 0, 0.4]),  # the first of the two remaining ids has 4/7
    ],
)
def test_four_elements_by_hand(settings: dict[str, Any], kept: list[float]) -> None:
    expected = np.array(kept) / np.sum(kept)
    assert np.allclose(probs_of(np.log(PROBS).tolist(), [0], **settings), expected, atol=within(1e-6))


def test_top_p_drops_ids_whose_total_is_exactly_the_rest() -> None:
    assert probs_of([0.0] * 4, [0], top_p=0.5) == [0, 0, 0.5, 0.5]


PENALISED = GenerationOptions(repetition_penalty=2.0)


def test_the_penalty_divides_positive_and_multiplies_negative_logits_once() -> None:
    logits = mx.array([[[2.0, -1.0, 0.0, 1.0]]])
    assert processed_logits(logits, [PENALISED], History([[0, 1, 1, 0]])).tolist() == [[[1.0, -2.0, 0.0, 1.0]]]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("case", GOLDENS, ids=lambda case: f"{case['settings']}-{len(case['logits'])}")
def test_probabilities_equal_those_of_hugging_face(case: dict[str, Any]) -> None:
    ours = probs_of(case["logits"], case["history"], **case["settings"])
    assert [p > 0 for p in ours] == [p > 0 for p in case["probs"]]
    assert np.allclose(ours, case["probs"], atol=within(1e-6))


MIXED = [
    sampled(temperature=0.8, top_k=6, top_p=0.9, min_p=0.05, repetition_penalty=1.3, seed=5),
    sampled(),
    sampled(top_k=2, seed=2),
    sampled(top_k=99, top_p=0.5, seed=9),
    sampled(temperature=1.4, min_p=0.3, repetition_penalty=0.7, seed=1),
    GenerationOptions(repetition_penalty=1.2),  # greedy; its distribution is the one at temperature 1
]
LOGITS = 2 * mx.random.normal((len(MIXED), 4, 12), key=mx.random.key(0))
PAST = [[0, 5, 7], [0], [0, 3, 3, 3, 8], [0, 1], [0, 2, 4, 6, 8, 10], [0, 7, 7]]
DRAFTED = mx.array(np.random.default_rng(0).integers(0, 12, (len(MIXED), 3)))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("compute", [processed_logits, logprobs, shifted_logprobs, perturbed_logprobs])
def test_rows_and_positions_are_transformed_independently(compute: Any) -> None:
    """A batch of rows with different options and histories has the same bits as each row and position separately."""
    together = compute(LOGITS, MIXED, History(PAST, DRAFTED))
    for row, options in enumerate(MIXED):
        logits, tokens, drafted = LOGITS[row : row + 1], PAST[row], DRAFTED[row : row + 1]
        assert mx.array_equal(together[row : row + 1], compute(logits, [options], History([tokens], drafted)))
        for i in range(4):
            past = [*tokens, *drafted[0, :i].tolist()]  # type: ignore[misc]
            single = compute(logits[:, i : i + 1], [options], History([past]))
            assert mx.array_equal(together[row : row + 1, i : i + 1], single)
    assert mx.isfinite(together).any(axis=-1).all()


def test_coupled_noise_depends_only_on_seed_and_position() -> None:
    def noise(past: Sequence[int], **settings: Any) -> mx.array:
        options, history = [sampled(**settings)], History([past])
        return perturbed_logprobs(LOGITS[:1, :1], options, history) - shifted_logprobs(LOGITS[:1, :1], options, history)

    def equal(one: mx.array, other: mx.array) -> bool:
        return bool(mx.allclose(one, other, atol=1e-5))

    assert equal(noise([0, 1, 2], seed=5), noise([0, 9, 9], seed=5, temperature=0.5, repetition_penalty=1.1))
    assert not equal(noise([0, 1, 2], seed=5), noise([0, 1, 2, 3], seed=5))
    assert not equal(noise([0, 1, 2], seed=5), noise([0, 1, 2], seed=6))


@pytest.mark.usefixtures("device")
def test_the_arg_max_of_perturbed_logprobs_is_a_sample() -> None:
    draws = 20_000
    repeated = mx.broadcast_to(mx.log(mx.array(PROBS)), (1, draws, 4))
    ids = mx.argmax(
        perturbed_logprobs(repeated, [sampled()], History([[0]], mx.zeros((1, draws - 1), mx.uint32))), axis=-1
    )
    found = np.bincount(np.array(ids)[0], minlength=4) / draws
    assert np.all(np.abs(found - PROBS) < 5 * np.sqrt(np.array(PROBS) / draws))
