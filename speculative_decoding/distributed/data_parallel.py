"""Decodes rows on several ranks that each hold the whole model.

Rank 0 distributes the rows, a few at a time, and collects the results. A single process therefore writes the output,
and faster ranks get more rows. This module is independent of models and of the contents of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from ..rows.scheduling import BatchResult, Scheduler, finished
from .process_group import Channel

Row = tuple[int, Mapping[str, Any]]  # a row's number in the job, and its fields
Result = TypeVar("Result")


class AllRanks(Generic[Result]):
    """A `Scheduler` on rank 0 that decodes rows on all ranks. Results are returned in order of completion.

    Each row is sent to the rank with the fewest unfinished rows, so even short jobs use all ranks.

    Args:
        own: Decodes rows in this process.
        channel: The connections to the other ranks.
        ranks: The other ranks, which run `serve_rows`.
        max_pending: The number of unfinished rows to keep on each of the other ranks. With fewer, a rank would idle
            while this process computes.
        parse: Builds a result from its JSON fields.
    """

    def __init__(
        self,
        own: Scheduler[Row, Any],
        channel: Channel,
        ranks: range,
        *,
        max_pending: int,
        parse: Callable[[Mapping[str, Any]], BatchResult[Result]],
    ) -> None:
        self._own = own
        self._channel = channel
        self._others = ranks
        self._max_pending = max_pending
        self._parse = parse
        self._rank_of: dict[int, int] = {}  # number of an unfinished row -> its rank

    def _pending(self, rank: int) -> int:
        return sum(each == rank for each in self._rank_of.values())

    @property
    def running(self) -> int:
        """The number of rows with a slot in this process."""
        return self._own.running

    @property
    def waiting(self) -> int:
        """The number of rows that wait in this process or are on other ranks."""
        return len(self._rank_of) - self.running

    @property
    def wants_more(self) -> bool:
        return self._own.wants_more or min(map(self._pending, self._others)) < self._max_pending

    @property
    def is_idle(self) -> bool:
        return not self._rank_of

    def submit(self, item: Row) -> Iterable[BatchResult[Result]]:
        rank = min(self._others, key=self._pending)
        if self._pending(rank) <= self._pending(0) or not self._own.wants_more:
            self._rank_of[item[0]] = rank
            self._channel.send(item, rank)
            return []
        self._rank_of[item[0]] = 0
        return self._ended(finished(self._own.submit(item)))

    def step(self) -> Iterator[BatchResult[Result]]:
        if self._own.is_idle:
            messages = [self._channel.receive()]
        else:
            yield from self._ended(finished(self._own.step()))
            messages = self._channel.received()
        yield from self._ended(self._parse(message) for _, message in messages)

    def cancel(self, number: int) -> None:
        rank = self._rank_of.pop(number, None)
        if rank == 0:
            self._own.cancel(number)
        elif rank is not None:
            self._channel.send({"cancel": number}, rank)

    def _ended(self, results: Iterable[BatchResult[Result]]) -> Iterator[BatchResult[Result]]:
        for result in results:
            if self._rank_of.pop(result.index, None) is not None:  # otherwise the row was cancelled
                yield result


def serve_rows(scheduler: Scheduler[Row, Any], channel: Channel) -> int:
    """Decode the rows that rank 0 sends until rank 0 leaves, and return its exit status. Runs on all other ranks."""
    while True:
        for _, message in [channel.receive()] if scheduler.is_idle else channel.received():
            if not isinstance(message, dict):
                for result in finished(scheduler.submit(message)):
                    channel.send(result)
            elif "cancel" in message:
                scheduler.cancel(message["cancel"])
            else:
                return int(message["leaves"])
        if not scheduler.is_idle:
            for result in finished(scheduler.step()):
                channel.send(result)
