"""Compiles a function of arrays once per shape, and joins arrays in a single kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any

import mlx.core as mx

from .device import on_gpu

MAX_SHAPES = 128  # a traced pass through a decoder with 6 layers takes 0.4 MB
MAX_COLUMNS = 8  # MLX fuses at most 11 operations in a chain

Compiled = Callable[[Hashable], Callable[..., Any]]


def compiled_by_shape(function: Callable[..., Any]) -> Compiled:
    """Return a function that maps a shape to `function`, compiled for this shape.

    A shape is any hashable key that identifies the shapes of all arguments.

    MLX keeps a trace for as long as the compiled function exists. If there are more than `MAX_SHAPES` shapes, the least
    recently used one is dropped, and traced again on its next use.
    """

    @lru_cache(maxsize=MAX_SHAPES)
    def compiled(shape: Hashable) -> Callable[..., Any]:
        return mx.compile(partial(function))  # a new object, because MLX keys traces by function object

    return compiled


def stacked(arrays: Sequence[mx.array], axis: int) -> mx.array:
    """Return `mx.stack(arrays, axis)`, in one kernel if compiled for a GPU, where `mx.stack` copies each separately."""
    if not on_gpu():
        return mx.stack(list(arrays), axis)
    shape = [1] * (arrays[0].ndim + 1)
    shape[axis] = len(arrays)
    numbers = mx.array([*range(len(arrays))]).reshape(shape)
    return selected(numbers, *(mx.expand_dims(each, axis) for each in arrays))


def selected(numbers: mx.array, *arrays: mx.array) -> mx.array:
    """Take each element from the array that its number in `numbers` names. All shapes are broadcast."""
    found = arrays[0]
    for i, each in enumerate(arrays[1:], 1):
        found = mx.where(numbers == i, each, found)
    return found


def joined_columns(arrays: Sequence[mx.array]) -> mx.array:
    """Concatenate ids (B, any number) along the second axis.

    On a GPU, a concatenation copies each array separately. Instead, one kernel joins `MAX_COLUMNS` columns at a time.
    It takes fewer columns, too, so that MLX compiles it only once.
    """
    if not on_gpu():
        return mx.concatenate(list(arrays), axis=1)
    columns = [array[:, i : i + 1] for array in arrays for i in range(array.shape[1])]
    parts = []
    for start in range(0, len(columns), MAX_COLUMNS):
        part = columns[start : start + MAX_COLUMNS]
        numbers = mx.array([[*range(len(part))]])
        unused = part[-1:] * (MAX_COLUMNS - len(part))
        parts.append(join((len(part[0]), len(part)))(numbers, *part, *unused))
    return mx.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


join = compiled_by_shape(selected)
