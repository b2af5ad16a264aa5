"""Recordings of clients: how the decoding thread transcribes them, and what the clients read of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from ..decoding.stats import GenerationStats
from ..errors import InputError
from ..session import Session
from ..speech.mel import MelSpectrogram
from ..speech.options import TranscriptionOptions
from ..speech.scheduler import TranscriptionEvent
from ..speech.segments import Segment
from ..speech.transcription import Transcription
from .client_request import Call, Served
from .errors import ServerError
from .limits import Limits


class RecordingUpdate(NamedTuple):
    """Segments that were finished, and the result with the last ones."""

    segments: list[Segment]
    result: Transcription | None

    @property
    def finish_reason(self) -> str | None:
        return None if self.result is None else "stop"

    @property
    def stats(self) -> GenerationStats | None:
        return None if self.result is None else self.result.stats


@dataclass(eq=False)
class ServedRecording(Served):
    """A recording.

    Args:
        recording: Its frames.
        options: Of the transcription and of decoding; see `Scheduler.task`.
    """

    recording: MelSpectrogram
    options: Mapping[str, Any]
    result: Transcription | None = field(init=False, default=None)

    def check(self, limits: Limits) -> None:
        limits.check_length("prompt", self.options.get("initial_prompt", ""))

    def add(self, update: RecordingUpdate) -> None:
        super().add(update)
        self.result = update.result


class RecordingWork:
    """Transcribes recordings for the decoding thread; see `Work`."""

    def __init__(self, session: Session, limits: Limits) -> None:
        defaults: dict[str, Any] = {} if session.model.audio is None else session.model.audio.defaults
        self._scheduler = session.scheduler(TranscriptionOptions(**defaults), {}, limits.slots)
        self._slots = limits.slots
        self._waiting: deque[ServedRecording] = deque()
        self._running: dict[int, ServedRecording] = {}
        self._numbers = count()
        self.finished = 0

    @property
    def decoding(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def active(self) -> list[ServedRecording]:
        return [*self._waiting, *self._running.values()]

    def submit(self, item: ServedRecording) -> Call:
        self._waiting.append(item)
        return item.client.on_queued

    def cancel(self, item: ServedRecording) -> None:
        if item in self._waiting:
            self._waiting.remove(item)
        for number, running in [*self._running.items()]:
            if running is item:
                self._scheduler.cancel(number)
                del self._running[number]

    def step(self) -> list[Call]:
        calls = []
        while self._waiting and len(self._running) < self._slots:
            number = next(self._numbers)
            item = self._running[number] = self._waiting.popleft()
            try:
                task = self._scheduler.task(item.recording, item.options)
                calls += self._handled(self._scheduler.start(number, task))
            except InputError as error:
                del self._running[number]
                calls.append(partial(item.client.fail, of_recording(error)))
        return calls + self._handled(self._scheduler.step())

    def _handled(self, events: Iterable[TranscriptionEvent]) -> list[Call]:
        """Return the calls that tell clients about their recordings."""
        calls: list[Call] = []
        for event in events:
            item = self._running[event.number]
            if event.is_last:
                del self._running[event.number]
            if event.error is not None:
                calls.append(partial(item.client.fail, of_recording(event.error)))
            elif event.segments or event.result is not None:
                self.finished += event.result is not None
                update = RecordingUpdate(event.segments, event.result)
                calls.append(partial(item.client.on_update, item, update))
        return calls


def of_recording(error: Exception) -> ServerError:
    """Convert the error of a recording, naming the fields of the API."""
    if isinstance(error, ArithmeticError):
        return ServerError(500, str(error), code="not_finite")
    return ServerError.of(InputError(str(error).replace("initial_prompt", "prompt")))
