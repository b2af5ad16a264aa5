"""A client's request while it is decoded: its prompts or its recording, and the updates still to be read.

All methods run on the event loop. The decoding thread schedules the calls of `on_queued`, `on_update` and `fail` there.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ..decoding.stats import GenerationStats
from .errors import ServerError
from .limits import Limits

Call = Callable[[], None]  # runs on the event loop


class Update(Protocol):
    """An extension of an item's output."""

    @property
    def finish_reason(self) -> str | None:
        """Why the output has ended; None before the last update."""

    @property
    def stats(self) -> GenerationStats | None:
        """Set in the last update."""


@dataclass(eq=False)
class Served(ABC):
    """A part of a client's request that is decoded by itself, and its output as far as the client has read it."""

    client: ClientRequest[Any] = field(init=False)
    index: int = field(init=False)  # in the client's request
    has_output: bool = field(init=False, default=False)
    finish_reason: str | None = field(init=False, default=None)
    stats: GenerationStats | None = field(init=False, default=None)

    @abstractmethod
    def check(self, limits: Limits) -> None:
        """Check everything that does not need the model. Raises `ServerError` that names the field."""

    def add(self, update: Any) -> None:
        """Add an `Update` that the client reads."""
        self.has_output = True
        self.finish_reason = update.finish_reason
        self.stats = update.stats


Item = TypeVar("Item", bound=Served)


class ClientRequest(Generic[Item]):
    """The items of one HTTP request, which are decoded together. If one of them fails, the request fails.

    Args:
        items: Prompts, or a recording.
        on_first_output: Called when the first output of each item is read.

    Attributes:
        unfinished: How many items have updates to come, even if the client has not read the previous ones.
        error: Why the request failed.
    """

    def __init__(self, items: Sequence[Item], on_first_output: Callable[[], None] = lambda: None) -> None:
        self.items = items
        for index, item in enumerate(items):
            item.client, item.index = self, index
        self.unfinished = len(items)
        self.error: ServerError | None = None
        self._on_first_output = on_first_output
        self._not_queued = len(items)
        self._all_queued = asyncio.Event()
        self._updates: asyncio.Queue[tuple[Item, Update] | ServerError] = asyncio.Queue()

    def on_queued(self) -> None:
        """The decoding thread has accepted an item, which may still wait for a slot."""
        self._not_queued -= 1
        if self._not_queued == 0:
            self._all_queued.set()

    def on_update(self, item: Item, update: Update) -> None:
        """The output of an item has grown."""
        if self.error is not None:
            return  # the update was on its way when the request failed
        if update.finish_reason is not None:
            self.unfinished -= 1
        self._updates.put_nowait((item, update))

    def fail(self, error: ServerError) -> None:
        self.unfinished = 0
        self.error = error
        self._all_queued.set()
        self._updates.put_nowait(error)

    async def wait_until_queued(self) -> None:
        """Wait until the decoding thread has accepted all items. Raises `ServerError` if it refuses one."""
        await self._all_queued.wait()
        if self.error is not None:
            raise self.error

    async def updates(self, timeout: float | None = None) -> AsyncIterator[tuple[Item, Any] | None]:
        """Yield each update until all items are finished, and None after each `timeout` seconds without one.

        Raises `ServerError` if the request fails.
        """
        while any(item.finish_reason is None for item in self.items):
            try:
                found = await asyncio.wait_for(self._updates.get(), timeout)
            except TimeoutError:
                yield None
                continue
            if isinstance(found, ServerError):
                raise found
            item, update = found
            if not item.has_output:
                self._on_first_output()
            item.add(update)
            yield item, update

    async def wait_until_finished(self) -> None:
        """Wait for the complete output of all items. Raises `ServerError` if the request fails."""
        await self.wait_until_queued()
        async for _ in self.updates():
            pass
