"""A product with a weight, without a bias, that costs a compiled pass one node of its graph and not two."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from .compiled import Prepared


class Linear(Prepared, nn.Linear):
    """x (..., inputs) -> (..., outputs). The weight is (outputs, inputs), as everywhere, and used transposed. That is a
    view, but a node in the graph of every pass, unless it has been evaluated before the pass is traced.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self._ready: tuple[mx.array, ...] = ()  # a weight, and its view

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self.transposed

    @property
    def transposed(self) -> mx.array:
        """(inputs, outputs)."""
        return self._ready[1] if self._ready and self._ready[0] is self.weight else self.weight.T

    def prepare(self, capacity: int) -> mx.array:
        if not self._ready or self._ready[0] is not self.weight:
            self._ready = self.weight, self.weight.T
        return self._ready[1]

    def forget(self) -> None:
        self._ready = ()
