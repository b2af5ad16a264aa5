"""Clients' recordings: how the decoding thread transcribes them, and the output that the clients read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from ..errors import InputError
from ..sampling import GenerationOptions
from ..session import Session
from ..speech.api import new_scheduler
from ..speech.options import TranscriptionOptions
from ..speech.recording import Recording
from ..speech.scheduler import Scheduler, Task, TranscriptionEvent
from ..speech.transcription import Transcription
from .client_request import Callback, ClientItem
from .errors import ServerError
from .limits import EXTRA_SLOTS, Limits
from .turns import Turns

FIELD_NAMES = {  # the API's fields for options that have another name there
    "audio": "file",
    "initial_prompt": "prompt",
    "word_timestamps": "timestamp_granularities[]",
}


@dataclass(eq=False)
class ClientRecording(ClientItem):
    """A client's recording.

    Args:
        recording: The frames.
        options: How to transcribe it.
        decoding: How to decode it: drafts, sampling, beams.
        address: The client's address. The recordings of one address share their turns.
    """

    recording: Recording
    options: TranscriptionOptions
    decoding: GenerationOptions
    address: str = ""
    result: Transcription | None = field(init=False, default=None)
    num_segments: int = field(init=False, default=0)

    def check(self, limits: Limits) -> None:
        limits.check_length("prompt", self.options.initial_prompt or "")

    def add(self, progress: TranscriptionEvent) -> None:
        self.num_segments += len(progress.segments)
        if progress.result is not None:
            self.result = progress.result
            self.finish_reason, self.stats = "stop", progress.result.stats

    def error_of(self, error: Exception) -> ServerError:
        return ServerError.of(error, field_name, "file")


class RecordingQueue:
    """Transcribes recordings for the decoding thread; see `DecodingQueue`.

    A recording releases its slot after each output. `Turns` chooses the next recording by the number of outputs that
    each client has received. A new recording does not wait for the outputs in progress, because an extra slot is
    reserved for first outputs. Other recordings wait for the first outputs in progress, to avoid slowing them down.

    Args:
        scheduler: Decodes the outputs. It has `EXTRA_SLOTS` more than `slots`.
        slots: How many recordings have a slot.
    """

    def __init__(self, scheduler: Scheduler, slots: int) -> None:
        self._scheduler = scheduler
        self._slots = slots
        self._turns = Turns[ClientRecording](credit=1.0)  # a turn is one output
        self._numbers: dict[ClientRecording, int] = {}  # numbers of the started recordings
        self._items: dict[int, ClientRecording] = {}  # the same recordings by number
        self._next_number = count()
        self._first: set[ClientRecording] = set()  # the recordings that are decoding their first output
        self._held: dict[ClientRecording, set[ClientRecording]] = {}  # recording -> first outputs that it waits for
        self.finished = 0

    @property
    def decoding(self) -> int:
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        return len(self._turns.items) - self.decoding

    @property
    def is_idle(self) -> bool:
        return not (self.decoding or self._turns.waiting)

    @property
    def active(self) -> list[ClientRecording]:
        return self._turns.items

    def submit(self, item: ClientRecording) -> list[Callback]:
        self._turns.enter(item, item.address)
        self._turns.wait(item)
        return [item.client.on_queued]

    def cancel(self, item: ClientRecording) -> None:
        self._turns.leave(item)
        self._first.discard(item)
        self._held.pop(item, None)
        if (number := self._numbers.pop(item, None)) is not None:
            self._scheduler.cancel(number)
            del self._items[number]

    def step(self) -> list[Callback]:
        calls: list[Callback] = []
        while (item := self._next()) is not None:
            self._turns.charge(item, 1)
            calls += self._resume(item)
        calls += self._handled(self._scheduler.decode_round())
        paused = [self._items[number] for number in self._scheduler.paused]
        self._first.difference_update(paused)
        for item in paused:
            if not self._turns.is_waiting(item):
                self._turns.wait(item)
                self._held[item] = set(self._first)
        return calls

    def _next(self) -> ClientRecording | None:
        """Return the recording that gets a slot, or None if no slot is free or no recording may take it."""
        free = self._slots - self.decoding
        if free + EXTRA_SLOTS <= 0:
            return None
        held = [item for item, firsts in self._held.items() if firsts & self._first]
        return self._turns.take(newcomers_only=free <= 0, without=held)

    def _resume(self, item: ClientRecording) -> list[Callback]:
        """Give a recording a slot."""
        calls: list[Callback] = []
        self._held.pop(item, None)
        if item not in self._numbers:
            self._first.add(item)
            number = self._numbers[item] = next(self._next_number)
            self._items[number] = item
            try:
                task = Task(item.recording, item.options, item.decoding, speech=item.recording.speech)
                calls += self._handled(self._scheduler.start(number, task))
            except InputError as error:
                self.cancel(item)
                calls.append(partial(item.client.fail, item.error_of(error)))
        if item in self._numbers:  # it has not failed
            calls += self._handled(self._scheduler.resume(self._numbers[item]))
        return calls

    def _handled(self, events: Iterable[Any]) -> list[Callback]:
        """Return the callbacks that notify clients of these events."""
        calls: list[Callback] = []
        for event in events:
            item = self._items[event.number]
            if event.is_last:
                self.cancel(item)
            if event.error is not None:
                calls.append(partial(item.client.fail, item.error_of(event.error)))
            elif event.segments or event.result is not None:
                self.finished += event.result is not None
                calls.append(partial(item.client.on_progress, item, event))
        return calls


def recording_queue(session: Session, limits: Limits) -> RecordingQueue:
    """Return a queue for a session with a speech model."""
    assert session.model.audio is not None
    options = TranscriptionOptions(**session.model.audio.defaults)
    return RecordingQueue(new_scheduler(session, options, {}, limits.slots + EXTRA_SLOTS), limits.slots)


def field_name(option: str) -> str:
    """Return the API's field for a transcription option."""
    return FIELD_NAMES.get(option, option)
