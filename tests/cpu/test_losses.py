"""The loss of training in NumPy, with its hand-derived gradient. The oracle is MLX, which derives the gradient."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from speculative_decoding.cpu import losses
from speculative_decoding.training import loss, teacher
from tests.support.training import random_labels


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("total_variation", [False, True])
def test_loss_and_gradients_equal_those_of_mlx(total_variation: bool, soft_cap: float | None) -> None:
    states, matrix, labels = random_labels()
    arrays = states.astype(mx.float32), matrix.astype(mx.float32)
    in_mlx: Any = loss.training_loss.__wrapped__  # type: ignore[attr-defined]

    def results(function: Any) -> tuple[mx.array, tuple[mx.array, mx.array]]:
        options = {"total_variation": total_variation, "soft_cap": soft_cap}
        return mx.value_and_grad(lambda *arrays: function(*arrays, labels, **options), argnums=(0, 1))(*arrays)

    (value, gradients), (expected, expected_gradients) = results(losses.training_loss), results(in_mlx)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for found, exact in zip(gradients, expected_gradients, strict=True):
        assert mx.allclose(found, exact, rtol=0, atol=1e-5).item()
    frozen = losses.training_loss(
        *arrays, labels, total_variation=total_variation, soft_cap=soft_cap, trains_output_matrix=False
    )
    assert frozen.item() == pytest.approx(expected.item(), rel=1e-5)


def test_sums_of_exponentials_equal_those_of_mlx() -> None:
    x = -mx.abs(mx.random.normal((3, 500), key=mx.random.key(0)) * 4)
    in_mlx: Any = teacher.exp_sums.__wrapped__  # type: ignore[attr-defined]
    assert mx.allclose(losses.exp_sums(x), in_mlx(x), rtol=1e-5).item()
