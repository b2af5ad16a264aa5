"""Slopes of a function of many parameters, by its gradients and by finite differences of its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map


def slopes(
    value: Callable[[Any], float], start: Any, gradients: Mapping[str, mx.array], count: int
) -> Iterator[tuple[float, float]]:
    """Along so many random directions through all parameters at once: what the gradients say, and what central
    differences of `value` over two steps say, extrapolated.
    """
    keys = iter(mx.random.split(mx.random.key(0), 1000))
    for _ in range(count):
        noise = tree_map(lambda parameter: mx.random.normal(parameter.shape, key=next(keys)), start)
        size = sum(mx.square(each).sum() for _, each in tree_flatten(noise)).item() ** 0.5
        direction = tree_map(lambda each: each / size, noise)  # noqa: B023

        def at(step: float, direction: Any = direction) -> float:
            return value(tree_map(lambda parameter, slope: parameter + step * slope, start, direction))

        one, two = ((at(h) - at(-h)) / (2 * h) for h in (0.02, 0.04))
        ours = sum((gradients[path] * each).sum() for path, each in tree_flatten(direction)).item()
        yield ours, (4 * one - two) / 3
