"""A norm that multiplies its output by a scale."""

from __future__ import annotations

import mlx.core as mx
import pytest

from speculative_decoding.models.layers import ScaledNorm, finalize_layers
from tests.support.operations import operations


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize(("width", "saves"), [(256, True), (128, False)])
def test_a_scaled_norm_equals_a_norm_and_a_product_bit_for_bit(width: int, saves: bool, dtype: mx.Dtype) -> None:
    """Small inputs have outputs that are subnormal in float16, where the product is not saved."""
    layer = ScaledNorm(width, 1e-6, width**-0.5)
    layer.weight = mx.random.normal((width,)).astype(dtype)
    x = mx.random.normal((5, width)) * mx.exp(4 * mx.random.normal((5, width)))
    x = mx.clip(x, -1e4, 1e4).astype(dtype)
    product = mx.fast.rms_norm(x, layer.weight, layer.eps) * layer.scale
    for _ in range(2):
        assert mx.array_equal(layer(x), product)
        finalize_layers(layer)
    mx.eval(x, layer.weight)
    product = mx.fast.rms_norm(x, layer.weight, layer.eps) * layer.scale
    saved = operations(product).total() - operations(layer(x)).total()
    assert saved == (saves and dtype != mx.float16)
