"""One training by several processes, each with a device of its own, as `mlx.launch` starts them: all take the same
steps on parts of the same examples, with averaged gradients. One process alone sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn

from ..errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among those of its training. All of them have to call what communicates, in the same order; where
    one has ended the others' calls raise `InputError`.
    """

    group: mx.distributed.Group | None = None

    @classmethod
    def launched(cls) -> Processes:
        """As this process was started. Raises `InputError` where the others cannot be reached."""
        try:
            return cls(mx.distributed.init())
        except (RuntimeError, ValueError) as error:
            raise InputError(f"the other processes of this training cannot be reached ({error})") from error

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Those that are this process's."""
        return items[self.rank :: self.size]

    def mean(self, tree: Any) -> Any:
        """Of arrays of one type, over the processes; the same in all of them."""
        if self.size == 1:
            return tree
        mx.eval(tree)  # an error in it is not the others'
        try:
            found = nn.average_gradients(tree, self.group)
            mx.eval(found)
        except RuntimeError as error:
            raise InputError("another process of this training has ended; see what it said, and --resume") from error
        return found

    def of_first(self, number: float) -> float:
        """What the first process has here."""
        if self.size == 1:
            return number
        return self.mean([mx.array(number * self.size if self.is_first else 0.0)])[0].item()

    def wait(self) -> None:
        """For all others to come here."""
        self.of_first(0.0)

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """The first process does it alone; then the others, who find on the disk what it has done."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()


ALONE = Processes()
