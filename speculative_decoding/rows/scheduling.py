"""Decodes many items together: `drive` keeps the slots of a `Scheduler` busy until no items are left.

This module does not depend on models or on the kind of item.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

Item = TypeVar("Item")
ItemIn = TypeVar("ItemIn", contravariant=True)
Step = TypeVar("Step")
ProgressOut = TypeVar("ProgressOut", covariant=True)
Result = TypeVar("Result")


@dataclass(frozen=True)
class BatchResult(Generic[Result]):
    """The result of one item, or a one-line error. index: its number; in a batch, its position from 0."""

    index: int
    result: Result | None
    error: str | None = None

    @property
    def number(self) -> Any:
        return self.index

    @property
    def is_last(self) -> bool:
        return True


class Progress(Protocol):
    """Progress of an item.

    number: The number of the item.
    is_last: Whether no other progress of the item follows. Then it has a result or an error, except at the end of live
        speech, whose text has been passed on already.
    """

    @property
    def number(self) -> Any: ...
    @property
    def is_last(self) -> bool: ...
    @property
    def result(self) -> Any: ...
    @property
    def error(self) -> Exception | str | None: ...


class Scheduler(Protocol[ItemIn, ProgressOut]):
    """Decodes several items at a time. An item is a pair of its number, which is any key, and what it is."""

    @property
    def running(self) -> int:
        """The number of items that have a slot."""

    @property
    def waiting(self) -> int:
        """The number of items that wait for a slot."""

    @property
    def wants_more(self) -> bool:
        """Whether another item should be submitted, so that no slot stays free. True if the scheduler is idle."""

    @property
    def is_idle(self) -> bool:
        """Whether `step` has nothing to do."""

    def submit(self, item: ItemIn) -> Iterable[ProgressOut]:
        """Queue an item. Returns any progress that is available immediately, such as an error."""

    def step(self) -> Iterable[ProgressOut]:
        """Run a round. Returns the progress of the items."""

    def cancel(self, number: Any) -> None:
        """Drop an item and free its slot, without further progress. Does nothing if it has finished."""


def drive(
    scheduler: Scheduler[Item, Step],
    items: Iterable[Item],
    submit: Callable[[Item], Iterable[Step]] | None = None,
    has_capacity: Callable[[], bool] = lambda: True,
) -> Iterator[Step]:
    """Decode all items, and yield their progress as soon as it is available.

    An item is read only when the scheduler wants one, so memory does not grow with the number of items.

    Args:
        scheduler: Decodes the items.
        items: The items.
        submit: Passes an item to the scheduler (default: its `submit`).
        has_capacity: Returns whether another item may be read.
    """
    unread = iter(items)
    has_more = True
    while True:
        while has_more and scheduler.wants_more and has_capacity():
            try:
                item = next(unread)
            except StopIteration:
                has_more = False
            else:
                yield from (submit or scheduler.submit)(item)
        if scheduler.is_idle:
            return
        yield from scheduler.step()


def finished(progress: Iterable[Progress]) -> Iterator[BatchResult[Any]]:
    """Yield the result of each item that ends."""
    for each in progress:
        if each.is_last:
            yield BatchResult(each.number, each.result, None if each.error is None else str(each.error))


def in_order(
    progress: Iterable[Step],
    number: Callable[[Step], int],
    is_last: Callable[[Step], bool] = lambda _: True,
) -> Iterator[Step]:
    """Yield all progress of item 0, then all progress of item 1, and so on, each as soon as possible.

    Args:
        progress: The progress of items, in any order.
        number: Returns the number of the item that the progress belongs to.
        is_last: Returns whether this is the last progress of its item.
    """
    held: dict[int, deque[Step]] = defaultdict(deque)
    current = 0
    for each in progress:
        held[number(each)].append(each)
        while held[current]:
            ready = held[current].popleft()
            yield ready
            if is_last(ready):
                del held[current]
                current += 1
