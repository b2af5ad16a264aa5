"""A client's recording or text until it has been decoded: its memory, place in the queue and deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .bodies import cancel_on
from .errors import ServerError

Result = TypeVar("Result")


class Upload:
    """A recording or a text of a client. Used on the event loop, except that a reading thread may also call `add`.

    Args:
        deadline: When its request must be finished, in the event loop's time.
        count: Called with the number of bytes that are added. It may raise `ServerError`.

    Attributes:
        size: Bytes in memory: a text, or a recording's file until its frames have been computed, and the frames.
        is_opening: Whether it counts as queued, because it has arrived but none of it is in the decoding thread.
    """

    def __init__(self, deadline: float, count: Callable[[int], None]) -> None:
        self.deadline = deadline
        self.size = 0
        self.is_opening = False
        self._count = count
        self._failure: asyncio.Future[ServerError] = asyncio.get_running_loop().create_future()

    def add(self, size: int) -> None:
        """Count bytes of a text, a file or its frames. Raises `ServerError` if all uploads are too large together."""
        self._count(size)
        self.size += size

    def fail(self, error: ServerError) -> None:
        """Make `unless_failed` raise an error, either now or in its next call."""
        if not self._failure.done():
            self._failure.set_result(error)

    async def unless_failed(self, work: Awaitable[Result]) -> Result:
        """Return the result of `work`, or cancel it when the upload fails. Raises `ServerError`."""
        return await cancel_on(asyncio.shield(self._failure), work)
