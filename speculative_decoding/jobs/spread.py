"""A job's rows over several processes, each with the whole model: the first hands them out, a few at a time, and takes
their results. So there is one output and one journal, and whoever is faster gets more. Knows nothing of models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..decoding.results import BatchResult, GenerationResult
from ..decoding.stats import GenerationStats
from ..distributed import Channel
from ..engine import QUEUE_PER_SLOT
from .job import DecodeRows

Rows = Iterator[Mapping[str, Any]]
NO_MORE = "no more rows"  # until the next
AHEAD = 4  # rows that another process may finish while this one computes, besides as many as it has slots


@dataclass(frozen=True)
class Spread:
    """`DecodeRows` over several processes. engine: this process's own. others: by rank, whoever does `work`.

    A row goes to whoever has the fewest, so a short job is shared too; what others have beyond that is what their
    engines take ahead, or they would wait for rows while this process computes.
    """

    engine: DecodeRows
    channel: Channel
    others: range
    slots: int

    def __call__(self, rows: Rows) -> Iterator[BatchResult]:
        numbered, mine, answered = enumerate(rows), list[int](), 0
        owing = dict.fromkeys(self.others, 0)

        def hand_out(most: int) -> None:
            """The next rows, to whoever has the fewest, until all of the others have so many."""
            while owing[rank := min(owing, key=owing.__getitem__)] < most and (row := next(numbered, None)):
                self.channel.send(row, rank)
                owing[rank] += 1

        def own_rows() -> Rows:
            while True:
                hand_out(len(mine) - answered + 1)
                if (row := next(numbered, None)) is None:
                    return self.channel.send(NO_MORE)
                mine.append(row[0])
                yield row[1]

        def answers(messages: list[tuple[int, Any]]) -> Iterator[BatchResult]:
            for rank, message in messages:
                owing[rank] -= 1
                yield answer_of(message)

        for answer in self.engine(own_rows()):
            answered += 1
            yield replace(answer, index=mine[answer.index])
            yield from answers(self.channel.received())
            hand_out((QUEUE_PER_SLOT + 2) * self.slots + AHEAD)
        while any(owing.values()):
            yield from answers([self.channel.receive()])


def work(engine: DecodeRows, channel: Channel) -> int:
    """Decode the rows that the first process hands out, until it leaves; its exit status."""
    while True:
        _, message = channel.receive()
        if isinstance(message, dict):
            return int(message["leaves"])
        if message == NO_MORE:
            continue
        indices: list[int] = []

        def rows(message: Any = message, indices: list[int] = indices) -> Rows:
            while message != NO_MORE:
                indices.append(message[0])
                yield message[1]
                _, message = channel.receive()

        for answer in engine(rows()):
            channel.send(replace(answer, index=indices[answer.index]))


def answer_of(message: Mapping[str, Any]) -> BatchResult:
    """A `BatchResult`, as it came."""
    result = message["result"]
    return BatchResult(message["index"], None if result is None else result_of(result), message["error"])


def result_of(fields: Mapping[str, Any]) -> GenerationResult:
    stats = GenerationStats(**fields["stats"])
    stats.accepted_histogram = Counter({int(size): count for size, count in stats.accepted_histogram.items()})
    sequences = tuple(result_of(each) for each in fields["sequences"])
    return GenerationResult(**{**fields, "stats": stats, "sequences": sequences})
