"""A function of arrays, compiled once for each shape, and which shapes there are; layers that prepare for it. Knows
nothing of what is computed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

MOST_SHAPES = 128  # a pass of a decoder with 6 layers takes 0.4 MB for each
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of passes; wider ones, as over a forced prefix, are rare


def pass_width(tokens: int) -> int:
    """How many tokens a pass over `tokens` is given, padding behind them: tracing a new width costs as much as several
    passes (docs/LOG.md, "Few widths").
    """
    return next((width for width in WIDTHS if width >= tokens), tokens)


class Compiled:
    """traced: how many shapes all of them have traced so far, which takes milliseconds each time.

    MLX keeps what it traced for each shape of the arguments for as long as the compiled function lives. So when
    there are many, all are forgotten, and traced again as they come.
    """

    traced = 0

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._forget()

    def __call__(self, shape: Hashable, *arguments: Any) -> Any:
        """shape: whatever decides the shapes of all arguments."""
        if shape not in self._shapes:
            if len(self._shapes) >= MOST_SHAPES:
                self._forget()
            self._shapes.add(shape)
            Compiled.traced += 1
        return self._compiled(*arguments)

    def _forget(self) -> None:
        self._compiled = mx.compile(self._function)
        self._shapes: set[Hashable] = set()


class Prepared(nn.Module):
    """A layer that keeps something computed from its weights, so that no pass computes it again.

    It may be used only while the weights are the very arrays that it was computed from. What depends on a request is
    never kept.
    """

    @abstractmethod
    def prepare(self, capacity: int) -> mx.array:
        """Compute it for passes that attend over `capacity` positions; an array, to be evaluated before the pass."""

    @abstractmethod
    def forget(self) -> None:
        """Give back what was prepared."""
