"""Admits or refuses requests, enforces time limits, and shuts the server down gracefully. Runs on the event loop."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from ..models.whisper_tokens import AudioConfig
from ..sampling import GenerationOptions
from ..session import Session
from .client_request import ClientRequest, Item, Upload
from .decoding_thread import DecodingThread
from .errors import FAILED, ServerError
from .limits import Limits
from .metrics import Metrics
from .reading_threads import ReadingThreads

LOADING = "loading"
READY = "ready"
STOPPING = "stopping"
FAILED_STATE = "failed"
COLLECTED_BYTES = 1 << 18  # size of an upload after which garbage is collected
ABORTED_SECONDS = 1.0  # time for clients to receive the errors for requests that a shutdown aborts
MAX_UPLOADS = 16  # limits the memory of all uploads together, as a multiple of the largest upload


class Service:
    """Admits clients' requests and passes them to the decoding thread.

    Attributes:
        state: The state of the server. Requests are admitted only while it is `READY`.
        session: The models. Set when they are loaded.
        options: The defaults for options that a request does not set.
        stopping: Set when `drain` begins.
        large_events: Held while a large event of live speech is handled.
        on_end: Called when the service ends, with an error or None.
    """

    session: Session
    options: GenerationOptions

    def __init__(self, thread: DecodingThread, limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self.state = LOADING
        self.stopping = asyncio.Event()
        self.large_events = asyncio.Lock()
        self.on_end: Callable[[Exception | None], None] = lambda error: None
        self._thread = thread
        self._requests: set[ClientRequest[Any]] = set()
        self._uploads: set[Upload] = set()
        self._live: set[ClientRequest[Any]] = set()
        self._failure: ServerError | None = None  # the error with which `_fail_all` ended all requests
        self._sockets = 0
        self._live_slots = 0  # number of slots in use
        self._seconds_per_item = 1.0  # running mean, with a guess as the first value
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        metrics.watch(decoding=lambda: thread.decoding, waiting=lambda: thread.waiting, slots=limits.slots)

    def start(self) -> None:
        self._thread.start(self._on_ready, self._on_thread_end)

    def stop(self) -> None:
        self._thread.stop()
        gc.unfreeze()

    def require_ready(self) -> None:
        if self.state != READY:
            raise ServerError(503, f"the server is {self.state}", code=self.state, headers={"Retry-After": "5"})

    @property
    def is_speech(self) -> bool:
        """Whether the server is ready and its model transcribes speech."""
        return self.state == READY and self.session.model.audio is not None

    def require_speech(self) -> AudioConfig:
        """Return the speech model's config. Raises `ServerError` if the server is not ready or has a text model."""
        self.require_ready()
        audio = self.session.model.audio
        if audio is None:
            message = "this model reads text and cannot transcribe; send a prompt to POST /v1/completions"
            raise ServerError(404, message, code="not_a_speech_model")
        return audio

    def require_text(self) -> None:
        """Raise `ServerError` if the server is not ready or has a speech model."""
        self.require_ready()
        if self.session.model.audio is not None:
            message = "this model transcribes speech; send a recording to POST /v1/audio/transcriptions"
            raise ServerError(404, message, code="speech_model")

    @property
    def admitted(self) -> int:
        """The number of prompts, texts and recordings that are waiting, being opened or being decoded."""
        opening = sum(upload.is_opening for upload in self._uploads)
        return opening + sum(request.unfinished for request in self._requests)

    @property
    def reading(self) -> ReadingThreads:
        """The threads that read recordings and texts."""
        return self._thread.reading

    def require_capacity(self, count: int) -> None:
        """Raise `ServerError` if the queue has no room for `count` more prompts, texts or recordings."""
        limits = self.limits
        if self.admitted + count > limits.slots + limits.queue:
            retry_after = max(1, math.ceil(self.admitted * self._seconds_per_item / limits.slots))
            raise ServerError(
                429,
                f"all slots and the queue are full; try again in about {retry_after} s",
                code="queue_full",
                headers={"Retry-After": str(retry_after)},
            )

    @contextmanager
    def upload(self, largest: int) -> Iterator[Upload]:
        """Admit a recording or a text, whose memory is counted until the context exits. Raises `ServerError`.

        One deadline applies to the whole request. An admitted request may still finish while the server is stopping.

        largest: The maximum size in bytes of a recording with its frames, or of a text.
        """
        self.require_ready()
        self.require_capacity(1)
        loop = asyncio.get_running_loop()
        upload = Upload(loop.time() + self.limits.max_seconds, partial(self._require_memory, largest))
        timer = loop.call_at(upload.deadline, upload.fail, self.timeout())
        self._uploads.add(upload)
        self._is_empty.clear()
        try:
            yield upload
        finally:
            timer.cancel()
            self._uploads.discard(upload)
            self._note_if_empty()
            if upload.size >= COLLECTED_BYTES:
                loop.call_soon(gc.collect)

    def _require_memory(self, largest: int, count: int) -> None:
        if sum(upload.size for upload in [*self._uploads]) + count > MAX_UPLOADS * largest:
            message = "too many recordings or texts are in progress; try again later"
            raise ServerError(429, message, code="queue_full", headers={"Retry-After": "5"})

    @contextmanager
    def opening(self, upload: Upload) -> Iterator[None]:
        """Count an upload as queued while it is opened within the context. Raises `ServerError`."""
        self.require_capacity(1)
        upload.is_opening = True
        try:
            yield
        finally:
            upload.is_opening = False

    @contextmanager
    def request(self, items: Sequence[Item], upload: Upload | None = None) -> Iterator[ClientRequest[Item]]:
        """Decode items (prompts, a text or a recording) within the context. If it exits early, they are cancelled.

        Raises `ServerError` if an item exceeds the limits or the queue is full.

        upload: The admitted upload from which the items are read. Its deadline applies.
        """
        for item in items:
            item.check(self.limits)
        if upload is None:
            self.require_ready()
            self.require_capacity(len(items))

        deadline = asyncio.get_running_loop().time() + self.limits.max_seconds if upload is None else upload.deadline
        with self._decoding(items, self._requests, deadline) as request:
            yield request

    async def decode(self, items: Sequence[Item], upload: Upload | None = None) -> None:
        """Decode items completely; see `request`. Raises `ServerError`."""
        with self.request(items, upload) as request:
            await request.wait_until_finished()

    @contextmanager
    def socket(self) -> Iterator[None]:
        """Count a socket as open within the context. `drain` waits until the context exits."""
        self._sockets += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._sockets -= 1
            self._note_if_empty()

    @contextmanager
    def live_slot(self) -> Iterator[None]:
        """Take a slot for live speech within the context. Raises `ServerError` if no slot is free."""
        self.require_ready()
        if self._live_slots >= self.limits.slots:
            message = f"all {self.limits.slots} slots for live speech are taken; try again later"
            raise ServerError(429, message, code="too_many_streams")
        self._live_slots += 1
        try:
            yield
        finally:
            self._live_slots -= 1

    @contextmanager
    def live(self, item: Item) -> Iterator[ClientRequest[Item]]:
        """Decode live speech within the context, without a time limit. The caller must hold a `live_slot`.

        Raises `ServerError` if the server has ended all requests.
        """
        if self._failure is not None:
            raise self._failure
        with self._decoding([item], self._live, None) as request:
            yield request

    def wake(self) -> None:
        """Wake the decoding thread, because more speech or another part of a text has arrived."""
        self._thread.wake()

    @contextmanager
    def _decoding(
        self, items: Sequence[Item], kept: set[ClientRequest[Any]], deadline: float | None
    ) -> Iterator[ClientRequest[Item]]:
        """Decode items within the context. kept: The set to add the request to. deadline: In the event loop's time."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        request = ClientRequest(
            items, on_first_output=lambda: self.metrics.time_to_first_token.observe(loop.time() - started)
        )
        timer = None if deadline is None else loop.call_at(deadline, self._fail, request, self.timeout())
        kept.add(request)
        self._is_empty.clear()
        self._thread.submit([item for item in items if item.finish_reason is None])
        try:
            yield request
        finally:
            if timer is not None:
                timer.cancel()
            kept.discard(request)
            self._note_if_empty()
            self._thread.cancel([item for item in items if item.finish_reason is None])
            self._record(request, None if deadline is None else loop.time() - started)

    def _record(self, request: ClientRequest[Any], seconds: float | None) -> None:
        """Record a finished request in the metrics and, unless `seconds` is None, in the mean time per item."""
        failed = "cancelled" if request.error is None else "error"
        for item in request.items:
            if item.finish_reason is not None and seconds is not None:
                self._seconds_per_item = 0.9 * self._seconds_per_item + 0.1 * seconds
            self.metrics.add(item.stats, item.finish_reason or failed)

    def timeout(self) -> ServerError:
        return ServerError(504, f"not finished within {self.limits.max_seconds:g} s", code="timeout")

    def _note_if_empty(self) -> None:
        if not (self._requests or self._uploads or self._sockets):
            self._is_empty.set()

    async def drain(self) -> None:
        """Refuse new requests, let the admitted requests finish within the grace period, and end the service."""
        if self.state == STOPPING:
            return
        self.state = STOPPING
        self.stopping.set()
        try:
            await asyncio.wait_for(self._is_empty.wait(), self.limits.grace)
        except TimeoutError:
            self.abort()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), ABORTED_SECONDS)
        self.on_end(None)

    def abort(self) -> None:
        """Abort all requests, so that `drain` ends."""
        self._fail_all(ServerError(503, "the server is stopping", code=STOPPING))

    def _on_ready(self, session: Session) -> None:
        self.session = session
        self.options = session.options_with({})
        gc.collect()
        gc.freeze()  # so that later collections examine only requests' objects, which takes milliseconds
        if self.state == LOADING:
            self.state = READY

    def _on_thread_end(self, error: Exception | None) -> None:
        if error is not None:
            self.state = FAILED_STATE
            self._fail_all(ServerError(500, FAILED, code=FAILED_STATE))
            self.on_end(error)

    def _fail_all(self, error: ServerError) -> None:
        self._failure = error
        for upload in self._uploads:
            upload.fail(error)
        for request in [*self._requests, *self._live]:
            self._fail(request, error)

    def _fail(self, request: ClientRequest[Any], error: ServerError) -> None:
        """Make a request fail, and free its slots immediately, even if the client does not read the error."""
        request.fail(error)
        self._thread.cancel(request.items)
