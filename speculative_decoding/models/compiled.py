"""A function of arrays, compiled once for each shape; layers that prepare for it. Knows nothing of what is computed."""

from __future__ import annotations

from abc import abstractmethod
from collections import UserDict
from collections.abc import Callable, Hashable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

MOST_SHAPES = 128  # a pass of a decoder with 6 layers takes 0.4 MB for each
WIDEST_COMPILED = 32  # positions of a pass; wider ones, as over a forced prefix, are rare


class Compiled:
    """MLX keeps what it traced for each shape of the arguments for as long as the compiled function lives. So when
    there are many, all are forgotten, and traced again as they come.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._forget()

    def __call__(self, shape: Hashable, *arguments: Any) -> Any:
        """shape: whatever decides the shapes of all arguments."""
        if shape not in self._shapes:
            if len(self._shapes) >= MOST_SHAPES:
                self._forget()
            self._shapes.add(shape)
        return self._compiled(*arguments)

    def _forget(self) -> None:
        self._compiled = mx.compile(self._function)
        self._shapes: set[Hashable] = set()


class Prepared(nn.Module):
    """A layer that keeps something computed from its weights, so that no pass computes it again. What depends on a
    request is never kept.
    """

    by_capacity = True  # whether it is another for passes that attend over another number of positions

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # By capacity: its source, and what was computed. No dict, of which MLX would make a child.
        self._prepared: UserDict[int, tuple[object, mx.array]] = UserDict()

    @property
    def source(self) -> object:
        """What it is computed from: it may be used only while this is the very same object."""
        return self.weight

    @abstractmethod
    def computed(self, capacity: int) -> mx.array:
        """For passes that attend over `capacity` positions."""

    def prepared(self, capacity: int = 0) -> mx.array:
        """What is kept, or else computed anew."""
        source, array = self._prepared.get(capacity * self.by_capacity, (None, None))
        return self.computed(capacity) if array is None or source is not self.source else array

    def prepare(self, capacity: int) -> mx.array:
        """Compute and keep it; an array, to be evaluated before a pass."""
        array = self.prepared(capacity)
        self._prepared[capacity * self.by_capacity] = self.source, array
        return array

    def forget(self) -> None:
        """Give back what was prepared."""
        self._prepared.clear()
