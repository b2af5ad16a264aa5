"""What one process asks of a model that is spread over several, the others do too.

The first process decodes; only it drafts, judges, samples and reads a clock. Each call that computes with the target's
weights it announces by a line, and its arrays come along, lazily: all processes add them up, and the others have zeros.
So nothing can be decided differently elsewhere. What a call computes is submitted as a whole, at once: then sums meet
in the same order everywhere, whatever of it is needed later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import finalize

import mlx.core as mx

from ..distributed import ProcessGroup

CALLS_OF_CACHES = ("assign", "zero_after", "reorder", "select")


class Mirrored(ABC):
    """What every process has its part of, here a cache. number: the same in all of them."""

    number: int = 0
    offsets: list[int]

    @property
    @abstractmethod
    def capacity(self) -> int: ...

    @abstractmethod
    def reserve(self, size: int) -> None: ...


class Mirror:
    """That of a process which is alone: nobody is told, and nothing is submitted before it is needed."""

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Announce a call; its arguments, as all processes have them."""
        return arguments

    def submitted(self, *computed: Any) -> Any:
        """What a call computed; the first of it."""
        return computed[0]

    @property
    def ranks(self) -> int:
        """How many processes share the model."""
        return 1

    def register(self, made: Mirrored) -> None:
        """What calls may name from now on."""

    def gathered(self, heads: mx.array, number: int) -> mx.array:
        """(B, H of each process, S, D) -> (B, H, S, D), H the number of all heads."""
        return heads


ALONE = Mirror()


@dataclass(eq=False)
class SharedMirror(Mirror):
    """summed: paths of the layers that compute parts of a sum."""

    processes: ProcessGroup
    summed: Sequence[str] = ()
    made: int = 0
    kept: dict[int, Mirrored] = field(default_factory=dict)  # where calls are followed
    forgotten: list[int] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return self.processes.size

    def call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        if self.processes.is_first:
            forgotten = [self.forgotten.pop() for _ in range(len(self.forgotten))]
            self.processes.channel.send([name, forgotten, *map(described, arguments)])
        return tuple(self._shared(each) if isinstance(each, mx.array) else each for each in arguments)

    def submitted(self, *computed: Any) -> Any:
        mx.async_eval(computed)  # type: ignore[no-untyped-call]
        return computed[0]

    def register(self, made: Mirrored) -> None:
        made.number = self.made
        self.made += 1
        if self.processes.is_first:
            finalize(made, self.forgotten.append, made.number)
        else:
            self.kept[made.number] = made

    def gathered(self, heads: mx.array, number: int) -> mx.array:
        every = mx.distributed.all_gather(heads.swapaxes(0, 1), group=self.processes.group)
        every = self.submitted(every).swapaxes(0, 1)
        return every[:, :: every.shape[1] // number]  # where there are fewer heads than processes, several have one

    def _shared(self, array: mx.array) -> mx.array:
        numbers = array.astype(mx.uint8) if array.dtype == mx.bool_ else array
        return self.submitted(mx.distributed.all_sum(numbers, group=self.processes.group).astype(array.dtype))

    def follow(self, model: Any) -> int:
        """Do what the first process does, until it leaves; its exit status."""
        while True:
            _, message = self.processes.channel.receive()
            if isinstance(message, dict):
                return int(message["leaves"])
            name, forgotten, *arguments = message
            for number in forgotten:
                del self.kept[number]
            ours = [self._ours(each) for each in arguments]
            of_cache = name in CALLS_OF_CACHES
            getattr(ours.pop(0) if of_cache else model, name)(*ours)

    def _ours(self, argument: Any) -> Any:
        if not isinstance(argument, Mapping):
            return argument
        if "shape" in argument:
            return mx.zeros(argument["shape"], getattr(mx, argument["dtype"]))
        found = self.kept[argument["number"]]
        found.reserve(argument["capacity"])
        found.offsets = argument["offsets"]
        return found


def described(argument: Any) -> Any:
    """For JSON, and for `SharedMirror._ours`."""
    if isinstance(argument, mx.array):
        return {"shape": argument.shape, "dtype": "bool_" if argument.dtype == mx.bool_ else str(argument.dtype)[9:]}
    if isinstance(argument, Mirrored):
        return {"number": argument.number, "offsets": argument.offsets, "capacity": argument.capacity}
    return argument
