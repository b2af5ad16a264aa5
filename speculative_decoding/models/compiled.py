"""Compiles a function of arrays once per shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import mlx.core as mx

MAX_SHAPES = 128  # a traced pass of a decoder with 6 layers takes 0.4 MB

Compiled = Callable[..., Any]  # of a shape, which is a key that determines the shapes of all arguments, and arguments


def compiled_by_shape(function: Callable[..., Any]) -> Compiled:
    """Return a function of (shape, *arguments) that compiles `function` when it first sees a shape.

    MLX keeps a trace for as long as the compiled function exists. Beyond `MAX_SHAPES`, the shape that was not used for
    the longest time is dropped, and traced again on its next use.
    """

    @lru_cache(maxsize=MAX_SHAPES)
    def compiled(shape: Hashable) -> Callable[..., Any]:
        return mx.compile(function)

    def call(shape: Hashable, *arguments: Any) -> Any:
        return compiled(shape)(*arguments)

    return call
