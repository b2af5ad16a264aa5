"""Decodes rows on several ranks that each hold the whole model. Independent of models and of the contents of rows.

Rank 0 distributes the rows, a few at a time, and collects the results. Thus a single process writes the output, and
faster ranks get more rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from .channel import Channel

Row = Mapping[str, Any]
Result = TypeVar("Result")  # a dataclass with the field `index`, the number of its row
Decode = Callable[[Iterator[Row]], Iterable[Result]]
END_OF_ROWS = "end of rows"


def decode_on_all_ranks(
    rows: Iterator[Row],
    decode: Decode[Result],
    channel: Channel,
    ranks: range,
    *,
    max_pending: int,
    parse: Callable[[Mapping[str, Any]], Result],
) -> Iterator[Result]:
    """Decode rows on all ranks, and yield their results in order of completion. Runs on rank 0.

    Each row goes to the rank with the fewest unfinished rows, so even short jobs use all ranks.

    Args:
        rows: The rows to decode.
        decode: Decodes rows in this process.
        channel: The connections to the other ranks.
        ranks: The other ranks, which run `serve_rows`.
        max_pending: Unfinished rows per other rank; with fewer, that rank would idle while this process computes.
        parse: Builds a result from its JSON fields.
    """
    numbered = enumerate(rows)
    own_numbers = list[int]()  # job numbers of the rows that this process decodes
    own_results = 0
    pending = dict.fromkeys(ranks, 0)

    def hand_out(limit: int) -> None:
        """Send rows to the other ranks until each one has `limit` unfinished rows."""
        while pending[rank := min(pending, key=pending.__getitem__)] < limit and (row := next(numbered, None)):
            channel.send(row, rank)
            pending[rank] += 1

    def own_rows() -> Iterator[Row]:
        while True:
            hand_out(len(own_numbers) - own_results + 1)
            if (row := next(numbered, None)) is None:
                channel.send(END_OF_ROWS)
                return
            own_numbers.append(row[0])
            yield row[1]

    def received(messages: list[tuple[int, Any]]) -> Iterator[Result]:
        for rank, message in messages:
            pending[rank] -= 1
            yield parse(message)

    for result in decode(own_rows()):
        own_results += 1
        yield renumbered(result, own_numbers)
        yield from received(channel.received())
        hand_out(max_pending)
    while any(pending.values()):
        yield from received([channel.receive()])


def serve_rows(decode: Decode[Any], channel: Channel) -> int:
    """Decode the rows that rank 0 sends until it leaves, and return its exit status. Runs on all other ranks."""
    while True:
        _, message = channel.receive()
        if isinstance(message, dict):
            return int(message["leaves"])
        if message == END_OF_ROWS:
            continue
        numbers: list[int] = []

        def rows(message: Any = message, numbers: list[int] = numbers) -> Iterator[Row]:
            while message != END_OF_ROWS:
                number, row = message
                numbers.append(number)
                yield row
                _, message = channel.receive()

        for result in decode(rows()):
            channel.send(renumbered(result, numbers))


def renumbered(result: Any, numbers: list[int]) -> Any:
    """Return the result with its row number in this process replaced by the row number in the job."""
    return replace(result, index=numbers[result.index])
