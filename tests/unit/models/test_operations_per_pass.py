"""The work of a pass beside element-wise operations, which `mx.compile` joins: products, cache writes and copies."""

from __future__ import annotations

import mlx.core as mx
import pytest

from tests.parity.test_t5 import load_golden
from tests.support.operations import operations
from tests.support.paths import GOLDENS

PRODUCTS = ("Matmul", "AddMM")
WRITES = ("DynamicSliceUpdate", "ScatterAxis", "SliceUpdate", "Scatter")
COPIES = ("Contiguous", "Copy", "Pad")


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (2, 6)])
@pytest.mark.parametrize(
    ("name", "per_layer", "residuals"),
    # Products of self-attention, cross-attention and the feed-forward layer. The last one of each adds the residual,
    # unless a norm follows it.
    [("t5", 10, 3), ("umt5", 10, 3), ("bart", 10, 3), ("whisper", 10, 3), ("t5gemma", 11, 0)],
)
def test_a_layer_needs_a_fixed_number_of_products_one_write_and_no_copy(
    name: str, per_layer: int, residuals: int, rows: int, width: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU may add the residuals of several positions separately, and copies their masks once for fused attention."""
    monkeypatch.setattr(mx, "compile", lambda function: function)
    model, golden = load_golden(GOLDENS / name)
    layers = model.config.decoder_layers
    cache = model.make_cache(model.encode(mx.array(golden["input_ids"][:rows])))
    mx.eval(model.decode(mx.array([[3]] * rows), cache), cache.arrays)
    found = operations(model.decode(mx.array([[4] * width] * rows), cache), cache.arrays)
    assert sum(found[each] for each in PRODUCTS) == 1 + per_layer * layers  # 1: the output matrix
    assert sum(found[each] for each in WRITES) == layers
    assert found["Arange"] == 0 or name == "t5gemma"  # the host computes positions; a CPU's rotary kernel has its own
    if device == "cpu" or rows * width == 1:
        assert found["AddMM"] >= residuals * layers
        assert sum(found[each] for each in COPIES) == 0
