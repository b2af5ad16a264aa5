"""A client's request during decoding: its items, their progress, and the upload from which they are read.

All methods of a request run on the event loop. The decoding thread schedules calls to `on_queued`, `on_progress` and
`fail` there. It calls an item's methods `start`, `client_progress` and `error_of` itself.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from ..decoding.results import GenerationStats
from ..rows.scheduling import Progress
from .bodies import cancel_on
from .errors import ServerError
from .limits import Limits

Callback = Callable[[], None]  # runs on the event loop


@dataclass(eq=False)
class ClientItem(ABC):
    """A separately decoded part of a client's request, with the output so far.

    finish_reason: None until the last progress has been read; set from the start if the item needs no decoding.
    address: The address of the client. All items with the same address share its turns.
    """

    takes_turns: ClassVar[bool] = False  # whether each window or prompt needs a turn
    is_endless: ClassVar[bool] = False  # whether decoding may take hours
    address = ""

    client: ClientRequest[Any] = field(init=False)
    index: int = field(init=False)  # position in the request
    has_output: bool = field(init=False, default=False)
    finish_reason: str | None = field(init=False, default=None)
    stats: GenerationStats | None = field(init=False, default=None)

    @property
    def samples(self) -> Sequence[ClientItem]:
        """The items that are submitted together with this item: all samples of a prompt."""
        return [self]

    @abstractmethod
    def check(self, limits: Limits) -> None:
        """Check the limits that do not require the model. Raises a `ServerError` that names the field."""

    @abstractmethod
    def start(self, scheduler: Any, number: int) -> Iterable[Progress]:
        """Submit this item to a scheduler, and return its first progress. Raises an error if it cannot be decoded."""

    def client_progress(self, progress: Any) -> tuple[ClientItem, Any] | None:
        """Return one of the `samples` and its progress for the client, or None if the client gets nothing."""
        return self, progress

    @abstractmethod
    def add(self, progress: Any) -> None:
        """Add progress to the output. The last progress sets `finish_reason` and `stats`."""

    @abstractmethod
    def error_of(self, error: Exception) -> ServerError:
        """Return the error response for an error in this item."""


Item = TypeVar("Item", bound=ClientItem)


class ClientRequest(Generic[Item]):
    """The items of one HTTP request, which are decoded together. If one item fails, the whole request fails.

    Args:
        items: The items to decode.
        on_first_output: Called for each item when its first output is read.

    Attributes:
        unfinished: The number of items that are still being decoded. The client may not have read all finished items.
        error: The error with which the request failed, or None.
    """

    def __init__(self, items: Sequence[Item], on_first_output: Callable[[], None] = lambda: None) -> None:
        self.items = items
        for index, item in enumerate(items):
            item.client, item.index = self, index
        self.unfinished = sum(item.finish_reason is None for item in items)
        self.error: ServerError | None = None
        self._on_first_output = on_first_output
        self._not_queued = self.unfinished
        self._all_queued = asyncio.Event()
        if not self.unfinished:
            self._all_queued.set()
        self._progress: asyncio.Queue[tuple[Item, Any] | ServerError] = asyncio.Queue()

    def on_queued(self) -> None:
        """Record that the decoding thread has accepted an item. The item may still wait for a slot."""
        self._not_queued -= 1
        if self._not_queued == 0:
            self._all_queued.set()

    def on_progress(self, item: Item, progress: Any) -> None:
        """Queue the progress of an item for the client."""
        if self.error is not None:
            return  # the progress was scheduled before the request failed
        self.unfinished -= progress.is_last
        self._progress.put_nowait((item, progress))

    def fail(self, error: ServerError) -> None:
        self.unfinished = 0
        self.error = error
        self._all_queued.set()
        self._progress.put_nowait(error)

    async def wait_until_queued(self) -> None:
        """Wait until the decoding thread has accepted all items. Raises `ServerError` if an item is refused."""
        await self._all_queued.wait()
        if self.error is not None:
            raise self.error

    async def progress(self, timeout: float | None = None) -> AsyncIterator[tuple[Item, Any] | None]:
        """Yield items with their progress until all are finished, and None after `timeout` idle seconds.

        For an item that needs no decoding, the progress is None. Raises `ServerError` if the request fails.
        """
        for item in self.items:
            if item.finish_reason is not None:
                yield item, None
        while any(item.finish_reason is None for item in self.items):
            try:
                found = await asyncio.wait_for(self._progress.get(), timeout)
            except TimeoutError:
                yield None
                continue
            if isinstance(found, ServerError):
                raise found
            item, progress = found
            if not item.has_output:
                item.has_output = True
                self._on_first_output()
            item.add(progress)
            yield item, progress

    async def wait_until_finished(self) -> None:
        """Wait for the complete output of all items. Raises `ServerError` if the request fails."""
        async for _ in self.progress():
            pass


Result = TypeVar("Result")


class Upload:
    """A recording or text from a client. Used on the event loop only, but reading threads may also call `add`.

    Args:
        deadline: The event-loop time by which the request must be finished.
        count: Called with the number of bytes that are added. May raise `ServerError`.

    Attributes:
        size: The number of bytes in memory: those of a text, or those of a recording's frames and, until all frames are
            computed, of its file.
        is_opening: Whether the upload counts as queued: it has arrived, but has not been submitted for decoding.
    """

    def __init__(self, deadline: float, count: Callable[[int], None]) -> None:
        self.deadline = deadline
        self.size = 0
        self.is_opening = False
        self._count = count
        self._failure: asyncio.Future[ServerError] = asyncio.get_running_loop().create_future()

    def add(self, size: int) -> None:
        """Count the bytes of a text, file or frames. Raises `ServerError` if all uploads together are too large."""
        self._count(size)
        self.size += size

    def fail(self, error: ServerError) -> None:
        """Make the current or next call to `unless_failed` raise an error."""
        if not self._failure.done():
            self._failure.set_result(error)

    async def unless_failed(self, work: Awaitable[Result]) -> Result:
        """Return the result of `work`. If the upload fails, cancel `work` and raise the `ServerError`."""
        return await cancel_on(asyncio.shield(self._failure), work)
