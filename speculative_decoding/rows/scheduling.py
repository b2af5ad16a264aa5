"""Defines the `Scheduler` protocol, and the loop `drive`, which keeps all slots busy until no items are left.

This module does not depend on models or on the items' type.
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
    """An item's result, or a one-line error. index: The item's number; in a batch, its position from 0."""

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
    """An item's progress.

    number: The item's number.
    is_last: Whether this is the item's last progress. The last progress contains a result or an error, except for live
        speech, whose text was part of earlier progress.
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
    """Decodes several items at a time. An item is a pair of a number (any hashable value) and content."""

    @property
    def running(self) -> int:
        """The number of items that occupy a slot."""

    @property
    def waiting(self) -> int:
        """The number of items that are waiting for a slot."""

    @property
    def wants_more(self) -> bool:
        """Whether another item should be submitted to keep all slots busy. True if the scheduler is idle."""

    @property
    def is_idle(self) -> bool:
        """Whether `step` has nothing to do."""

    def submit(self, item: ItemIn) -> Iterable[ProgressOut]:
        """Queue an item. Returns progress that is available immediately, such as an error."""

    def step(self) -> Iterable[ProgressOut]:
        """Run a round, and return the items' progress."""

    def cancel(self, number: Any) -> None:
        """Drop an item and free its slot. No more progress follows for this item. Ignores finished items."""


def drive(
    scheduler: Scheduler[Item, Step],
    items: Iterable[Item],
    submit: Callable[[Item], Iterable[Step]] | None = None,
    has_capacity: Callable[[], bool] = lambda: True,
) -> Iterator[Step]:
    """Decode all items, and yield their progress as soon as it is available.

    Items are read only when the scheduler can accept more, so memory use does not grow with their number.

    Args:
        scheduler: Decodes the items.
        items: The items.
        submit: Passes an item to the scheduler (default: `scheduler.submit`).
        has_capacity: Returns whether the caller can take another item.
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
    """Yield the result of each finished item."""
    for each in progress:
        if each.is_last:
            yield BatchResult(each.number, each.result, None if each.error is None else str(each.error))


def in_order(
    progress: Iterable[Step],
    number: Callable[[Step], int],
    is_last: Callable[[Step], bool] = lambda _: True,
) -> Iterator[Step]:
    """Yield all progress for item 0, then all progress for item 1, and so on, each as soon as possible.

    Args:
        progress: The items' progress, in any order.
        number: Returns the number of the item to which the progress belongs.
        is_last: Returns whether the progress is its item's last.
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
