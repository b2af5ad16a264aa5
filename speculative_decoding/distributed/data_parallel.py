"""Decodes rows on several ranks that each hold the whole model.

Rank 0 distributes the rows, a few at a time, and collects the results. Thus a single process writes the output, and
faster ranks get more rows. This module is independent of models and of the contents of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .channel import Channel

if TYPE_CHECKING:
    from ..rows import Scheduler

Row = tuple[int, Mapping[str, Any]]  # its number in the job, and its fields
Result = TypeVar("Result")


class AllRanks(Generic[Result]):
    """A `rows.Scheduler` on rank 0 that decodes rows on all ranks. Results come in order of completion.

    Each row goes to the rank with the fewest unfinished rows, so even short jobs use all ranks.

    Args:
        own: Decodes rows in this process, and returns one result for each row.
        channel: The connections to the other ranks.
        ranks: The other ranks, which run `serve_rows`.
        max_pending: Unfinished rows to keep on each other rank. With fewer, it would idle while this process computes.
        parse: Builds a result from its JSON fields.
    """

    def __init__(
        self,
        own: Scheduler[Row, Result],
        channel: Channel,
        ranks: range,
        *,
        max_pending: int,
        parse: Callable[[Mapping[str, Any]], Result],
    ) -> None:
        self._own = own
        self._channel = channel
        self._max_pending = max_pending
        self._parse = parse
        self._own_pending = 0  # unfinished rows of this process
        self._pending = dict.fromkeys(ranks, 0)  # unfinished rows of each other rank

    @property
    def wants_more(self) -> bool:
        return self._own.wants_more or min(self._pending.values()) < self._max_pending

    @property
    def is_idle(self) -> bool:
        return self._own.is_idle and not any(self._pending.values())

    def submit(self, item: Row) -> Iterable[Result]:
        rank = min(self._pending, key=self._pending.__getitem__)
        if self._pending[rank] <= self._own_pending or not self._own.wants_more:
            self._channel.send(item, rank)
            self._pending[rank] += 1
            return []
        self._own_pending += 1
        return self._counted(self._own.submit(item))

    def step(self) -> Iterator[Result]:
        if self._own.is_idle:
            messages = [self._channel.receive()]
        else:
            yield from self._counted(self._own.step())
            messages = self._channel.received()
        for rank, message in messages:
            self._pending[rank] -= 1
            yield self._parse(message)

    def _counted(self, results: Iterable[Result]) -> Iterator[Result]:
        for result in results:
            self._own_pending -= 1
            yield result


def serve_rows(scheduler: Scheduler[Row, Any], channel: Channel) -> int:
    """Decode the rows that rank 0 sends until it leaves, and return its exit status. Runs on all other ranks."""
    while True:
        for _, message in [channel.receive()] if scheduler.is_idle else channel.received():
            if isinstance(message, dict):
                return int(message["leaves"])
            for result in scheduler.submit(message):
                channel.send(result)
        if not scheduler.is_idle:
            for result in scheduler.step():
                channel.send(result)
