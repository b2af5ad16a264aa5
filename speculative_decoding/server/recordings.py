"""Items for the recordings of clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..rows.scheduling import Progress
from ..sampling import GenerationOptions
from ..session import Session
from ..speech.api import new_scheduler
from ..speech.options import TranscriptionOptions
from ..speech.recording import Recording
from ..speech.scheduler import Scheduler, Task, TranscriptionEvent
from ..speech.transcription import Transcription
from .client_request import ClientItem
from .errors import ServerError
from .limits import EXTRA_SLOTS, Limits

FIELD_NAMES = {  # the API's fields for options that have another name there
    "audio": "file",
    "initial_prompt": "prompt",
    "word_timestamps": "timestamp_granularities[]",
}


@dataclass(eq=False)
class ClientRecording(ClientItem):
    """A recording of a client.

    Args:
        recording: The frames.
        options: Transcription options.
        decoding: Decoding options: drafts, sampling, beams.
    """

    takes_turns = True

    recording: Recording
    options: TranscriptionOptions
    decoding: GenerationOptions
    address: str = ""
    result: Transcription | None = field(init=False, default=None)
    num_segments: int = field(init=False, default=0)

    def check(self, limits: Limits) -> None:
        limits.check_length("prompt", self.options.initial_prompt or "")

    def start(self, scheduler: Scheduler, number: int) -> Iterable[Progress]:
        task = Task(self.recording, self.options, self.decoding, speech=self.recording.speech)
        return scheduler.start(number, task)

    def client_progress(self, progress: TranscriptionEvent) -> tuple[ClientRecording, TranscriptionEvent] | None:
        return (self, progress) if progress.segments or progress.is_last else None

    def add(self, progress: TranscriptionEvent) -> None:
        self.num_segments += len(progress.segments)
        if progress.result is not None:
            self.result = progress.result
            self.finish_reason, self.stats = "stop", progress.result.stats

    def error_of(self, error: Exception) -> ServerError:
        return ServerError.of(error, FIELD_NAMES, "file")


def speech_scheduler(session: Session, limits: Limits) -> Scheduler:
    """Return a scheduler for recordings and live speech. The session has a speech model."""
    assert session.model.audio is not None
    options = TranscriptionOptions(**session.model.audio.defaults)
    return new_scheduler(session, options, {}, limits.slots + EXTRA_SLOTS, live_slots=limits.slots)
