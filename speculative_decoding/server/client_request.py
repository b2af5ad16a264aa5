"""A client's request while it is decoded: its items, and the progress that the client has not read yet.

Requests are used on the event loop, where the decoding thread schedules calls to `on_queued`, `on_progress` and `fail`.
Of an item, the decoding thread calls `start`, `news` and `error_of`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from ..decoding.results import GenerationStats
from ..rows.scheduling import Progress
from .errors import ServerError
from .limits import Limits

Callback = Callable[[], None]  # runs on the event loop


@dataclass(eq=False)
class ClientItem(ABC):
    """A separately decoded part of a client's request, and the output that the client has read so far.

    finish_reason: None until the last progress has been read. For an item without decoding, it is set from the start.
    address: The client's address. The items of one address share their turns.
    """

    takes_turns: ClassVar[bool] = False  # whether it needs a turn for each window or prompt
    is_endless: ClassVar[bool] = False  # whether it may take hours
    address = ""

    client: ClientRequest[Any] = field(init=False)
    index: int = field(init=False)  # position in the client's request
    has_output: bool = field(init=False, default=False)
    finish_reason: str | None = field(init=False, default=None)
    stats: GenerationStats | None = field(init=False, default=None)

    @property
    def samples(self) -> Sequence[ClientItem]:
        """The items that are submitted with this one: all samples of a prompt."""
        return [self]

    @abstractmethod
    def check(self, limits: Limits) -> None:
        """Check everything that does not need the model. Raises a `ServerError` that names the field."""

    @abstractmethod
    def start(self, scheduler: Any, number: int) -> Iterable[Progress]:
        """Pass this item to a scheduler. Returns the first progress. Raises an error if the item cannot be decoded."""

    def news(self, progress: Any) -> tuple[ClientItem, Any] | None:
        """Return what a client reads of the scheduler's progress, and for which of the `samples`; None for nothing."""
        return self, progress

    @abstractmethod
    def add(self, progress: Any) -> None:
        """Add the next progress to the output. The last one sets `finish_reason` and `stats`."""

    @abstractmethod
    def error_of(self, error: Exception) -> ServerError:
        """Return the error response for an error of this item."""


Item = TypeVar("Item", bound=ClientItem)


class ClientRequest(Generic[Item]):
    """The items of one HTTP request, which are decoded together. If one item fails, the whole request fails.

    Args:
        items: What is decoded for it.
        on_first_output: Called when the first output of each item is read.

    Attributes:
        unfinished: How many items have not been decoded completely. The client may not have read all of the others yet.
        error: Why the request failed, or None.
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
        """Record that the decoding thread has accepted an item, which may still wait for a slot."""
        self._not_queued -= 1
        if self._not_queued == 0:
            self._all_queued.set()

    def on_progress(self, item: Item, progress: Any) -> None:
        """Queue the progress of an item for the client."""
        if self.error is not None:
            return  # the progress was on its way when the request failed
        self.unfinished -= progress.is_last
        self._progress.put_nowait((item, progress))

    def fail(self, error: ServerError) -> None:
        self.unfinished = 0
        self.error = error
        self._all_queued.set()
        self._progress.put_nowait(error)

    async def wait_until_queued(self) -> None:
        """Wait until the decoding thread has accepted all items. Raises `ServerError` if it refuses one."""
        await self._all_queued.wait()
        if self.error is not None:
            raise self.error

    async def progress(self, timeout: float | None = None) -> AsyncIterator[tuple[Item, Any] | None]:
        """Yield all progress until all items are finished, and None after each `timeout` seconds without progress.

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
