"""Who is served: requests are admitted or refused at once, and each is told what comes of its prompts. Lives on the
event loop, beside the device's thread. Knows nothing of HTTP's shapes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

from ..sampling import GenerationOptions
from ..session import Session
from .decoding_thread import FAILED, DecodingThread, PromptUpdate, ServedPrompt, Started
from .errors import ServerError
from .limits import Limits
from .metrics import Metrics

LOADING, READY, STOPPING, FAILED_STATE = "loading", "ready", "stopping", "failed"
USUAL_SECONDS = 1.0  # of a prompt, before one was decoded
MEMORY = 0.9  # of what prompts took


class ClientRequest:
    """The prompts of one client's request, decoded together. An error of one ends the request, and no other."""

    def __init__(
        self,
        prompts: Sequence[tuple[str, GenerationOptions]],
        wants_rejected: bool,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        """on_first: is called with each row's first token. unfinished: rows of which more is to come, read or not."""
        self._on_first, self.has_failed, self.unfinished = on_first, False, len(prompts)
        self._items: asyncio.Queue[tuple[ServedPrompt, Started | PromptUpdate] | ServerError] = asyncio.Queue()
        self.rows = [
            ServedPrompt(*prompt, self._receive, index, wants_rejected) for index, prompt in enumerate(prompts)
        ]

    def _receive(self, row: ServedPrompt, item: Started | PromptUpdate | ServerError) -> None:
        if isinstance(item, ServerError):
            self.fail(item)
            return
        self.unfinished -= isinstance(item, PromptUpdate) and item.round.finish_reason is not None
        self._items.put_nowait((row, item))

    def fail(self, error: ServerError) -> None:
        self.unfinished = 0
        self._items.put_nowait(error)

    async def started(self) -> None:
        """Until all prompts are known to be fit. Raises `ServerError` for one that is not."""
        for _ in self.rows:
            row, item = await self._next()
            assert isinstance(item, Started)
            row.prompt_tokens = item.prompt_tokens

    async def steps(self, patience: float | None = None) -> AsyncIterator[tuple[ServedPrompt, PromptUpdate] | None]:
        """Each round of each row, as it comes, until all have ended; None whenever nothing came for `patience` seconds.

        Raises `ServerError`.
        """
        while any(row.finish_reason is None for row in self.rows):
            try:
                row, item = await asyncio.wait_for(self._next(), patience)
            except TimeoutError:
                yield None
                continue
            assert isinstance(item, PromptUpdate)
            if not row.pieces:
                self._on_first()
            row.add(item)
            yield row, item

    async def _next(self) -> tuple[ServedPrompt, Started | PromptUpdate]:
        item = await self._items.get()
        if isinstance(item, ServerError):
            self.has_failed = True
            raise item
        return item


class Service:
    """state: only a `READY` one takes requests. options: where they do not say. on_end: is called once nothing is left
    to do, with what ended it.
    """

    options: GenerationOptions

    def __init__(self, device: DecodingThread, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics, self.state = limits, metrics, LOADING
        self.on_end: Callable[[Exception | None], None] = lambda problem: None
        self._device, self._requests, self._seconds = device, set[ClientRequest](), USUAL_SECONDS
        self._empty = asyncio.Event()
        self._empty.set()
        metrics.watch(lambda: device.decoding, lambda: device.waiting, limits.slots)

    def start(self) -> None:
        self._device.start(self._ready, self._ended)

    def stop(self) -> None:
        self._device.stop()

    @property
    def session(self) -> Session:
        """Raises `ServerError` where there is none yet, or no more."""
        self.require_ready()
        return self._session

    def require_ready(self) -> None:
        if self.state != READY:
            raise ServerError(503, f"the server is {self.state}", code=self.state, headers={"Retry-After": "5"})

    @property
    def admitted(self) -> int:
        """Prompts that are decoded or wait."""
        return sum(request.unfinished for request in self._requests)

    @contextmanager
    def request(
        self, prompts: Sequence[tuple[str, GenerationOptions]], *, wants_rejected: bool = False
    ) -> Iterator[ClientRequest]:
        """While it is entered the prompts are decoded; left early, they are cancelled. Raises `ServerError` where there
        is no room.
        """
        self.require_ready()
        limits, loop = self.limits, asyncio.get_running_loop()
        for prompt, options in prompts:
            limits.check(prompt, options)
        if self.admitted + len(prompts) > limits.slots + limits.queue:
            wait = max(1, math.ceil(self.admitted * self._seconds / limits.slots))
            raise ServerError(
                429,
                f"all slots and places in the queue are taken; try again in about {wait} s",
                code="queue_full",
                headers={"Retry-After": str(wait)},
            )
        begun = loop.time()
        request = ClientRequest(prompts, wants_rejected, lambda: self.metrics.first_token(loop.time() - begun))
        late = ServerError(504, f"not finished within {limits.max_seconds:g} s", code="timeout")
        timer = loop.call_later(limits.max_seconds, self._fail, request, late)
        self._requests.add(request)
        self._empty.clear()
        self._device.submit(request.rows)
        try:
            yield request
        finally:
            timer.cancel()
            self._requests.discard(request)
            if not self._requests:
                self._empty.set()
            self._device.cancel([row for row in request.rows if row.finish_reason is None])
            for row in request.rows:
                if row.finish_reason is not None:
                    self._seconds = MEMORY * self._seconds + (1 - MEMORY) * (loop.time() - begun)
                self.metrics.add(row.stats, row.finish_reason or ("error" if request.has_failed else "cancelled"))

    async def drain(self) -> None:
        """Take nothing more, let what runs finish within the grace, and end."""
        if self.state == STOPPING:
            return
        self.state = STOPPING
        try:
            await asyncio.wait_for(self._empty.wait(), self.limits.grace)
        except TimeoutError:
            self._fail_all(ServerError(503, "the server ends", code=STOPPING))
        self.on_end(None)

    def _ready(self, session: Session) -> None:
        self._session, self.options = session, session.options_with({})
        if self.state == LOADING:
            self.state = READY

    def _ended(self, problem: Exception | None) -> None:
        if problem is not None:
            self.state = FAILED_STATE
            self._fail_all(ServerError(500, FAILED, code=FAILED_STATE))
            self.on_end(problem)

    def _fail_all(self, error: ServerError) -> None:
        for request in self._requests:
            self._fail(request, error)

    def _fail(self, request: ClientRequest, error: ServerError) -> None:
        """Its slots are free before it has read why."""
        request.fail(error)
        self._device.cancel(request.rows)
