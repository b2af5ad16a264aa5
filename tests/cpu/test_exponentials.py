"""Properties of the softmax and the GELU for x86-64 CPUs. The oracles are NumPy in float64 and `math.erf`."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from speculative_decoding.cpu.exponentials import PIECE, exp_of_negative, gelu, softmax


def exact_softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_exponentials_are_as_exact_as_float32_allows_and_masks_become_zero() -> None:
    x = np.concatenate([-np.geomspace(1e-8, 87, 5000), [0.0]]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    relative_errors = np.abs(np.array(exp_of_negative(mx.array(x))) / exact - 1)
    assert (relative_errors < 3e-7 + 6e-8 * np.abs(x)).all()  # the product of x and log2(e) is rounded
    masked = mx.array([-100.0, -1e9, float(mx.finfo(mx.float32).min), -math.inf])
    assert exp_of_negative(masked).tolist() == [0.0] * 4


@pytest.mark.parametrize("length", [1, 60, 1500])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_softmax_equals_its_definition_in_every_precision_and_length(length: int, dtype: mx.Dtype) -> None:
    x = mx.random.normal((2, 3, length), key=mx.random.key(0)) * 8
    x[0, 0, 5:] = -math.inf
    x[1] = -6e4
    x = x.astype(dtype)
    found = softmax(x)
    assert found.dtype == dtype
    tolerance = {mx.float32: 1e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3}[dtype]
    np.testing.assert_allclose(
        np.array(found.astype(mx.float32)),
        exact_softmax(np.array(x.astype(mx.float32), np.float64)),
        rtol=0,
        atol=tolerance,
    )


def test_a_row_with_a_value_that_is_not_finite_has_no_finite_softmax() -> None:
    x = mx.zeros((2, 600))
    x[0, 3] = math.nan
    assert mx.isnan(softmax(x)[0]).all().item() and mx.isfinite(softmax(x)[1]).all().item()


@pytest.mark.parametrize("shape", [(3,), (2, PIECE // 2 + 5), (3, PIECE)])
def test_gelu_equals_its_definition(shape: tuple[int, ...]) -> None:
    x = mx.random.normal(shape, key=mx.random.key(1)) * 4
    values = np.array(x, np.float64).reshape(-1)
    exact = [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in values]
    np.testing.assert_allclose(np.array(gelu(x)).reshape(-1), exact, rtol=0, atol=3e-6)
    assert gelu(x.astype(mx.bfloat16)).dtype == mx.bfloat16


def test_bits_do_not_depend_on_how_many_rows_are_computed_together() -> None:
    x = mx.random.normal((7, 1503), key=mx.random.key(2)) * 5
    assert mx.array_equal(softmax(x)[:1], softmax(x[:1])).item()
    assert mx.array_equal(gelu(x)[3:5], gelu(x[3:5])).item()


@pytest.mark.parametrize(
    ("function", "expected"), [(softmax, lambda x: mx.softmax(x, axis=-1)), (gelu, nn.gelu)], ids=["softmax", "gelu"]
)
def test_gradients_equal_those_of_mlx_also_within_a_compiled_function(
    function: Callable[[mx.array], mx.array], expected: Callable[[mx.array], mx.array]
) -> None:
    x = mx.random.normal((2, 600), key=mx.random.key(3)) * 3
    weights = mx.random.normal(x.shape, key=mx.random.key(4))
    reference = mx.grad(lambda x: (expected(x) * weights).sum())(x)
    for wrap in (lambda f: f, mx.compile):
        gradient = wrap(mx.grad(lambda x: (function(x) * weights).sum()))(x)
        assert mx.allclose(gradient, reference, atol=1e-5).item()
    assert mx.allclose(mx.compile(function)(x), expected(x), atol=1e-6).item()
