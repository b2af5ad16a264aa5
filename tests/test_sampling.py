"""Logits -> probabilities: by hand on four elements, and as Hugging Face's processors have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError, SamplingParams
from speculative_decoding.sampling import Use, key

GOLDENS = json.loads((Path(__file__).parent / "goldens" / "processors.json").read_text())["cases"]
PROBS = [0.1, 0.2, 0.3, 0.4]


def probs_of(logits: list[float], history: list[int], **settings: Any) -> list[float]:
    sampling = SamplingParams(**({"temperature": 1.0} | settings))
    return sampling.probs(mx.array([[logits]]), mx.array([history])).tolist()[0][0]  # type: ignore[no-any-return, call-overload, index]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 1}, [0, 0, 0, 0.4]),
        ({"top_k": 3}, [0, 0.2, 0.3, 0.4]),
        ({"top_k": 9}, PROBS),
        ({"top_p": 0.35}, [0, 0, 0, 0.4]),  # what reaches 0.35: the first alone
        ({"top_p": 0.45}, [0, 0, 0.3, 0.4]),
        ({"top_p": 0.85}, [0, 0.2, 0.3, 0.4]),
        ({"top_p": 1e-9}, [0, 0, 0, 0.4]),  # one always stays
        ({"min_p": 0.6}, [0, 0, 0.3, 0.4]),
        ({"min_p": 1.0}, [0, 0, 0, 0.4]),
        ({"temperature": 0.5}, [0.01, 0.04, 0.09, 0.16]),
        ({"temperature": 0.5, "min_p": 0.3}, [0, 0, 0.09, 0.16]),  # temperature comes before min_p
        ({"top_k": 2, "top_p": 0.5}, [0, 0, 0, 0.4]),  # of the two left the first has 4/7
    ],
)
def test_four_elements_by_hand(settings: dict[str, Any], kept: list[float]) -> None:
    expected = np.array(kept) / np.sum(kept)
    assert np.allclose(probs_of(np.log(PROBS).tolist(), [0], **settings), expected, atol=1e-6)


def test_the_penalty_divides_positive_and_multiplies_negative_logits_once() -> None:
    logits = [2.0, -1.0, 0.0, 1.0]
    penalised = SamplingParams(repetition_penalty=2.0).scores(mx.array([[logits]]), mx.array([[0, 1, 1, 0]]))
    assert penalised.tolist() == [[[1.0, -2.0, 0.0, 1.0]]]


def test_each_position_sees_the_tokens_before_it_and_no_more() -> None:
    """Three positions behind the ids 0, 3, 1, 2: the last sees all, the first only 0 and 3."""
    logits = mx.ones((1, 3, 5))
    penalised = SamplingParams(repetition_penalty=2.0).scores(logits, mx.array([[0, 3, 1, 2]]))
    assert penalised.tolist() == [[[0.5, 1, 1, 0.5, 1], [0.5, 0.5, 1, 0.5, 1], [0.5, 0.5, 0.5, 0.5, 1]]]


def test_rows_do_not_see_each_others_tokens() -> None:
    penalised = SamplingParams(repetition_penalty=2.0).scores(mx.ones((2, 1, 3)), mx.array([[0, 0], [2, 1]]))
    assert penalised.tolist() == [[[0.5, 1, 1]], [[1, 0.5, 0.5]]]


@pytest.mark.parametrize("case", GOLDENS, ids=lambda case: f"{case['settings']}-{len(case['logits'])}")
def test_probabilities_are_those_of_hugging_face(case: dict[str, Any]) -> None:
    ours = probs_of(case["logits"], case["history"], **case["settings"])
    assert [p > 0 for p in ours] == [p > 0 for p in case["probs"]]
    assert np.allclose(ours, case["probs"], atol=1e-6)


def test_positions_are_transformed_one_by_one() -> None:
    """Many positions at once give what each gives alone."""
    sampling = SamplingParams(temperature=0.8, top_k=6, top_p=0.9, min_p=0.05, repetition_penalty=1.3)
    logits = 2 * mx.random.normal((1, 4, 12), key=mx.random.key(0))
    ids = mx.array([[0, 5, 7, 2, 5, 9]])
    together = sampling.probs(logits, ids)
    for i in range(4):
        assert mx.allclose(together[:, i : i + 1], sampling.probs(logits[:, i : i + 1], ids[:, : 3 + i]), atol=1e-7)


def test_coupled_noise_depends_on_seed_and_position_alone() -> None:
    logits = mx.random.normal((1, 4, 12), key=mx.random.key(0))
    sampling = SamplingParams(temperature=1.0, seed=5)
    together = sampling.perturbed(logits, None, 7)
    for i in range(4):
        assert mx.array_equal(together[:, i : i + 1], sampling.perturbed(logits[:, i : i + 1], None, 7 + i))
    noise = [together - sampling.logprobs(logits, None), sampling.perturbed(logits, None, 8) - together]
    assert all(mx.abs(x).max() > 0.1 for x in noise)
    other = SamplingParams(temperature=1.0, seed=6)
    assert not mx.array_equal(other.perturbed(logits, None, 7), together)


def test_the_arg_max_of_perturbed_logprobs_is_a_sample() -> None:
    logits, draws = mx.log(mx.array(PROBS)), 20_000
    repeated = mx.broadcast_to(logits, (1, draws, 4))
    found = np.bincount(np.array(mx.argmax(SamplingParams(1.0).perturbed(repeated, None, 1), axis=-1))[0]) / draws
    assert np.all(np.abs(found - PROBS) < 5 * np.sqrt(np.array(PROBS) / draws))


def test_keys_differ_by_seed_position_and_use() -> None:
    keys = {tuple(key(seed, position, use).tolist()) for seed in range(3) for position in range(40) for use in Use}  # type: ignore[arg-type]
    assert len(keys) == 3 * 40 * len(Use)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-1.0, float("nan"), float("inf")]),
        ("top_k", [-1, 2.5, True]),
        ("top_p", [0.0, -0.1, 1.1, float("nan")]),
        ("min_p", [-0.1, 1.1, float("nan")]),
        ("repetition_penalty", [0.0, -1.0, float("nan"), float("inf")]),
        ("seed", [-1, 2**32, 0.5]),
    ],
)
def test_bad_values_are_named(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InputError, match=f"^{name} must be .* not {value}"):
            SamplingParams(**{name: value})
