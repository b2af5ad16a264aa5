"""Directional derivatives of a function of many parameters, from gradients and from finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map


def directional_derivatives(
    value: Callable[[Any], float], start: Any, gradients: Mapping[str, mx.array], count: int
) -> Iterator[tuple[float, float]]:
    """Yield (derivative from gradients, derivative from finite differences) along random directions.

    Each direction changes all parameters. Central differences over two step sizes are extrapolated to step size 0.
    """
    keys = iter(mx.random.split(mx.random.key(0), 1000))
    for _ in range(count):
        noise = tree_map(lambda parameter: mx.random.normal(parameter.shape, key=next(keys)), start)
        size = sum(mx.square(each).sum() for _, each in tree_flatten(noise)).item() ** 0.5
        direction = tree_map(lambda each: each / size, noise)  # noqa: B023

        def value_at(step: float, direction: Any = direction) -> float:
            return value(tree_map(lambda parameter, slope: parameter + step * slope, start, direction))

        coarse, fine = ((value_at(step) - value_at(-step)) / (2 * step) for step in (0.04, 0.02))
        from_gradients = sum((gradients[path] * each).sum() for path, each in tree_flatten(direction)).item()
        yield from_gradients, (4 * fine - coarse) / 3
