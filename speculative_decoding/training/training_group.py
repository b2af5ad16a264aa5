"""Data-parallel training over the processes started by `mlx.launch`.

Every rank processes its part of the examples in each step, and gradients are averaged over the ranks. A single process
does not communicate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import InputError


@dataclass(frozen=True)
class TrainingGroup:
    """The ranks of one training run; only this process if `group` is None.

    All ranks must call the methods that communicate (`mean`, `from_first`, `in_turn`) in the same order. These methods
    raise `InputError` if another rank has exited.
    """

    group: mx.distributed.Group | None = None

    @classmethod
    def join(cls) -> TrainingGroup:
        """Join the other ranks, if `mlx.launch` started any. Raises `InputError` if they cannot be reached."""
        try:
            return cls(mx.distributed.init())
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"training: the other processes cannot be reached ({error}); start all of them with one mlx.launch"
            ) from error

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def mean(self, tree: Any) -> Any:
        """Average a tree of arrays over the ranks. All arrays must have the same dtype."""
        if self.size == 1:
            return tree
        mx.eval(tree)  # raise errors in the computation here, so that they are not reported as a lost rank
        try:
            averaged = nn.average_gradients(tree, self.group)
            mx.eval(averaged)
        except RuntimeError as error:
            raise InputError(
                "training: another process has ended; see its messages, and continue with --resume"
            ) from error
        return averaged

    def from_first(self, number: float) -> float:
        """Return the first rank's `number` on every rank."""
        if self.size == 1:
            return number
        return self.mean([mx.array(number * self.size if self.is_first else 0.0)])[0].item()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run the block on one rank at a time, once all ranks have reached it. None continues before all are done."""
        for _ in range(self.rank + 1):
            self.from_first(0.0)
        yield
        for _ in range(self.size - self.rank):
            self.from_first(0.0)


SINGLE_PROCESS = TrainingGroup()
