"""Linear layers whose derived weights are evaluated once, and logits for a subset of the vocabulary."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from .device import on_gpu

Head = Callable[[mx.array], mx.array]


class DerivedWeight(nn.Module):
    """A layer that uses a value derived from its weight; `finalize_layers` evaluates this value once for all passes.

    After the weight is replaced, as in a training step, every pass derives the value again.
    """

    @abstractmethod
    def derive(self) -> mx.array:
        """Compute the value from the weight."""

    @property
    def derived(self) -> mx.array:
        weight, derived = self.get("_finalized", (None, None))
        return derived if weight is self.weight else self.derive()


def finalize_layers(module: nn.Module) -> None:
    """Evaluate the derived value of every layer within a module."""
    for layer in module.modules():
        if isinstance(layer, DerivedWeight):
            derived = layer.derive()
            mx.eval(derived)
            layer._finalized = layer.weight, derived


class Linear(DerivedWeight, nn.Linear):
    """x (..., inputs) -> (..., outputs), with a weight (outputs, inputs).

    `nn.Linear` transposes the weight in every pass, which adds a graph node each time.
    """

    def __call__(self, x: mx.array) -> mx.array:
        return mx.addmm(self.bias, x, self.derived) if "bias" in self else x @ self.derived

    def derive(self) -> mx.array:
        """Return the transposed weight, (inputs, outputs)."""
        return self.weight.T


def project(layer: nn.Module, x: mx.array, residual: mx.array | None = None) -> mx.array:
    """Return layer(x) plus the residual, if given. For a `Linear` without bias, one operation computes both.

    x: (rows, inputs). residual: (rows, outputs).
    """
    if residual is None:
        return layer(x)
    if isinstance(layer, Linear) and "bias" not in layer and adds_rows_in_bounds(len(x), x.shape[1], residual.shape[1]):
        return mx.addmm(residual, x, layer.derived)
    return residual + layer(x)


def adds_rows_in_bounds(rows: int, inputs: int, outputs: int) -> bool:
    """Return whether `mx.addmm` reads only the rows that its addend (rows, outputs) has.

    One of Metal's matmul kernels reads up to 63 further rows and ignores them, but the GPU may fault. The kernels for
    one row, and for few rows with many inputs, do not (docs/decisions/mlx-faults.md). Follows
    `steel_matmul_regular_axpby` and "Split K" in mlx/backend/metal/matmul.cpp at commit 846d176.
    """
    tiles = -(-rows // 16) * -(-outputs // 16)
    splits_inputs = inputs >= max(rows, outputs, 128) and tiles <= 1024
    return not on_gpu() or rows == 1 or splits_inputs


def matrix(layer: nn.Module) -> mx.array:
    """Return the layer's weight (outputs, inputs), dequantized if necessary."""
    if "scales" not in layer:
        return layer.weight
    return mx.dequantize(layer.weight, layer.scales, layer.get("biases"), layer.group_size, layer.bits, layer.mode)


def rows_of(layer: nn.Module, ids: mx.array) -> Head:
    """Return a function (B, L, d) -> (B, L, N) that multiplies by N rows of the weight, which may be quantized."""
    parts = {name: layer[name][ids] for name in ("weight", "scales", "biases") if name in layer}
    if "scales" not in parts:
        transposed = parts["weight"].T  # once, rather than in every product
        return lambda x: x @ transposed
    settings = {"bits": layer.bits, "group_size": layer.group_size, "mode": layer.mode}
    return lambda x: mx.quantized_matmul(x, parts["weight"], parts["scales"], parts.get("biases"), **settings)
