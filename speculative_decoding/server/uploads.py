"""Counts a client's recording or text in memory and in the queue until it has been decoded, and keeps its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .bodies import cancel_on
from .errors import ServerError

Result = TypeVar("Result")


class Upload:
    """A recording or a text of a client. Used on the event loop, except that reading threads may also call `add`.

    Args:
        deadline: When the request must be finished, in the time of the event loop.
        count: Called with the number of bytes that are added. May raise `ServerError`.

    Attributes:
        size: Bytes in memory: of a text, or of the frames of a recording and, until they are complete, its file.
        is_opening: Whether the upload counts as queued: it has arrived, but has not been submitted for decoding.
    """

    def __init__(self, deadline: float, count: Callable[[int], None]) -> None:
        self.deadline = deadline
        self.size = 0
        self.is_opening = False
        self._count = count
        self._failure: asyncio.Future[ServerError] = asyncio.get_running_loop().create_future()

    def add(self, size: int) -> None:
        """Count bytes of a text, a file or its frames. Raises `ServerError` if all uploads together are too large."""
        self._count(size)
        self.size += size

    def fail(self, error: ServerError) -> None:
        """Make `unless_failed` raise an error: the current call, or the next one."""
        if not self._failure.done():
            self._failure.set_result(error)

    async def unless_failed(self, work: Awaitable[Result]) -> Result:
        """Return the result of `work`, or cancel it when the upload fails. Raises `ServerError`."""
        return await cancel_on(asyncio.shield(self._failure), work)
