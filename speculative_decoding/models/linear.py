"""Products with a weight: one that costs a compiled pass one node of its graph and not two, and one with a few rows."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from .compiled import Prepared

Head = Callable[[mx.array], mx.array]


class Linear(Prepared, nn.Linear):
    """x (..., inputs) -> (..., outputs). The weight is (outputs, inputs), as everywhere, and used transposed. That is a
    view, but a node in the graph of every pass, unless it has been evaluated before the pass is traced.
    """

    by_capacity = False

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias)

    def __call__(self, x: mx.array) -> mx.array:
        return mx.addmm(self.bias, x, self.transposed) if "bias" in self else x @ self.transposed

    @property
    def transposed(self) -> mx.array:
        """(inputs, outputs)."""
        return self.prepared()

    def computed(self, capacity: int) -> mx.array:
        return self.weight.T


def matrix(layer: nn.Module) -> mx.array:
    """Its weight, also where it is quantised."""
    if "scales" not in layer:
        return layer.weight
    return mx.dequantize(layer.weight, layer.scales, layer.get("biases"), layer.group_size, layer.bits, layer.mode)


def rows_of(layer: nn.Module, ids: mx.array) -> Head:
    """A product with these rows of a table alone, (N,): (B, L, d) -> (B, L, N); also where it is quantised."""
    parts = {name: layer[name][ids] for name in ("weight", "scales", "biases") if name in layer}
    if "scales" not in parts:
        transposed = parts["weight"].T  # once: it is a node in the graph of every product
        return lambda x: x @ transposed
    settings = {"bits": layer.bits, "group_size": layer.group_size, "mode": layer.mode}
    return lambda x: mx.quantized_matmul(x, parts["weight"], parts["scales"], parts.get("biases"), **settings)
