"""Live speech of clients: how the decoding thread transcribes it alongside recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Lock
from typing import Any

import numpy as np

from ..decoding.results import GenerationStats
from ..session import Session
from ..speech.api import new_scheduler
from ..speech.audio_file import SAMPLE_RATE, Samples
from ..speech.live.resampler import Resampler
from ..speech.live.stream import LiveStream
from ..speech.live.update import LiveUpdate
from ..speech.options import TranscriptionOptions
from ..speech.scheduler import Scheduler
from .client_request import Callback, ClientItem
from .errors import ServerError
from .limits import Limits
from .realtime_format import RATE, field_path
from .recordings import RecordingQueue, recording_queue


@dataclass(eq=False)
class ClientStream(ClientItem):
    """Speech that a client sends in pieces. It is kept until the decoding thread has begun to transcribe it.

    Args:
        options: How to transcribe it; already checked.
        wake: Wakes the decoding thread.

    Raises:
        InputError: PyAV is not installed.
    """

    options: Mapping[str, Any]
    wake: Callable[[], None]
    stream: LiveStream | None = field(init=False, default=None)
    _kept: list[Samples] = field(init=False, default_factory=list)
    _num_kept: int = field(init=False, default=0)
    _is_finished: bool = field(init=False, default=False)
    _lock: Lock = field(init=False, default_factory=Lock)

    def __post_init__(self) -> None:
        self.stats = GenerationStats()
        self._resampler = Resampler(RATE)

    @property
    def waiting_seconds(self) -> float:
        """How much audio no hypothesis has heard."""
        with self._lock:
            return self._num_kept / SAMPLE_RATE + (0.0 if self.stream is None else self.stream.waiting_seconds)

    def append(self, pcm: bytes) -> None:
        """Append samples: 16-bit, little-endian, mono, at `RATE`."""
        self._pass_on(self._resampler.append(np.frombuffer(pcm, "<i2")))

    def finish(self) -> None:
        """Let the text of all speech so far become final."""
        rest = self._resampler.finish()
        del self._resampler  # many finished streams may wait
        self._is_finished = True
        self._pass_on(rest)

    def _pass_on(self, samples: Samples) -> None:
        with self._lock:
            if len(samples):  # often none are complete, and many empty arrays would need memory
                self._kept.append(samples)
                self._num_kept += len(samples)
            self._empty()
        self.wake()

    def begin(self, stream: LiveStream) -> None:
        """Let a stream transcribe the speech, from its start. Called by the decoding thread."""
        with self._lock:
            self.stream = stream
            self._empty()

    def _empty(self) -> None:
        """Pass everything on that is kept, once there is a stream."""
        if self.stream is not None:
            for samples in self._kept:
                self.stream.append(samples)
            self._kept, self._num_kept = [], 0
            if self._is_finished:
                self.stream.finish()

    def check(self, limits: Limits) -> None:
        """`RealtimeSession` has checked the options."""

    def add(self, progress: LiveUpdate) -> None:
        assert self.stats is not None
        self.stats.add(progress.stats)
        if progress.is_last:
            self.finish_reason = "stop"

    def error_of(self, error: Exception) -> ServerError:
        return ServerError.of(error, field_path)


class LiveQueue:
    """Transcribes live speech for the decoding thread; see `DecodingQueue`. Every stream has a slot from its start."""

    waiting = 0

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: dict[int, ClientStream] = {}
        self._next_number = count()
        self.finished = 0  # hypotheses, because a stream may take hours

    @property
    def decoding(self) -> int:
        return len(self._items)

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_idle

    @property
    def active(self) -> list[ClientStream]:
        return [*self._items.values()]

    def submit(self, item: ClientStream) -> list[Callback]:
        stream = self._scheduler.open_stream(item.options)
        number = next(self._next_number)
        self._items[number] = item
        item.begin(stream)
        return [item.client.on_queued, *map(self._tell, self._scheduler.start(number, stream))]

    def cancel(self, item: ClientStream) -> None:
        for number, each in [*self._items.items()]:
            if each is item:
                del self._items[number]
                self._scheduler.cancel(number)

    def step(self) -> list[Callback]:
        return [*map(self._tell, self._scheduler.step())]

    def _tell(self, update: Any) -> Callback:
        """Return the callback that notifies a client of a hypothesis."""
        item = self._items[update.number]
        if update.is_last:
            del self._items[update.number]
        if update.error is not None:
            return partial(item.client.fail, item.error_of(update.error))
        self.finished += 1
        return partial(item.client.on_progress, item, update)


class SpeechQueue:
    """Recordings and live speech: a round of each in turn. See `DecodingQueue`."""

    def __init__(self, recordings: RecordingQueue, live: LiveQueue) -> None:
        self._recordings = recordings
        self._live = live
        self._queues: tuple[LiveQueue, RecordingQueue] = (live, recordings)

    @property
    def decoding(self) -> int:
        return sum(queue.decoding for queue in self._queues)

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in self._queues)

    @property
    def is_idle(self) -> bool:
        return all(queue.is_idle for queue in self._queues)

    @property
    def active(self) -> list[ClientItem]:
        return [item for queue in self._queues for item in queue.active]

    @property
    def finished(self) -> int:
        return sum(queue.finished for queue in self._queues)

    def submit(self, item: ClientItem) -> Sequence[Callback]:
        return self._queue_of(item).submit(item)

    def cancel(self, item: ClientItem) -> None:
        self._queue_of(item).cancel(item)

    def step(self) -> list[Callback]:
        return [call for queue in self._queues if not queue.is_idle for call in queue.step()]

    def _queue_of(self, item: ClientItem) -> Any:
        return self._live if isinstance(item, ClientStream) else self._recordings


def speech_queue(session: Session, limits: Limits) -> SpeechQueue:
    """Return a queue for a session with a speech model."""
    assert session.model.audio is not None
    options = TranscriptionOptions(**session.model.audio.defaults)
    live = new_scheduler(session, options, {}, live_slots=limits.slots)
    return SpeechQueue(recording_queue(session, limits), LiveQueue(live))
