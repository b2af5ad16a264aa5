"""The matrix that training computes logits with: with the family's bias, and before the family's cap."""

from __future__ import annotations

import mlx.core as mx

from speculative_decoding.training.students import flatten_states, output_matrix_of
from tests.parity.test_bart import opened
from tests.parity.test_gemma import target_of


def test_training_matrix_includes_the_logits_bias() -> None:
    model, _ = opened("marian")
    states, ids = mx.random.normal((2, 3, 16), key=mx.random.key(0)), mx.array([7, 0, 95, 33])
    products = (flatten_states(model, states) @ output_matrix_of(model, ids)).reshape(2, 3, 4)
    assert mx.allclose(products, model.logits(states)[..., ids], atol=1e-5)


def test_training_matrix_is_not_capped() -> None:
    target, states = target_of("t5gemma"), 3 * mx.random.normal((1, 2, 32), key=mx.random.key(1))
    ids = mx.array([4, 9, 70])
    products = states @ output_matrix_of(target, ids)
    assert mx.allclose(products, states @ target.embedding.weight[ids].T, atol=1e-4)
    assert mx.abs(products - target.logits(states)[..., ids]).max().item() > 0.02
