"""Compiles a function of arrays once per shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import mlx.core as mx

MAX_SHAPES = 128  # a traced pass of a decoder with 6 layers takes 0.4 MB


class Compiled:
    """`mx.compile` with a bound on the number of traced shapes.

    MLX keeps every trace for as long as the compiled function exists. With more than `MAX_SHAPES` shapes, all traces
    are dropped, and each shape is traced again on its next use.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._drop_traces()

    def __call__(self, shape: Hashable, *arguments: Any) -> Any:
        """Call the function.

        Args:
            shape: A key that determines the shapes of all arguments.
        """
        if shape not in self._shapes:
            if len(self._shapes) >= MAX_SHAPES:
                self._drop_traces()
            self._shapes.add(shape)
        return self._compiled(*arguments)

    def _drop_traces(self) -> None:
        self._compiled = mx.compile(self._function)
        self._shapes: set[Hashable] = set()
