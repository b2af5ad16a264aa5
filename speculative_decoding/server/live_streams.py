"""Items for the live speech of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from ..decoding.results import GenerationStats
from ..rows.scheduling import Progress
from ..speech.audio_file import SAMPLE_RATE, Samples
from ..speech.live.resampler import Resampler
from ..speech.live.stream import LiveStream
from ..speech.live.update import LiveUpdate
from ..speech.scheduler import Scheduler
from .client_request import ClientItem
from .errors import ServerError
from .limits import Limits
from .realtime_audio import PCM, AudioFormat
from .realtime_format import FIELD_PATHS


@dataclass(eq=False)
class ClientStream(ClientItem):
    """Speech that a client sends in chunks. The chunks are buffered until the decoding thread opens a `LiveStream`.

    Args:
        options: Transcription options, which have been checked.
        wake: Wakes the decoding thread.
        audio_format: The format of the chunks.

    Raises:
        InputError: PyAV is not installed.
    """

    is_endless = True

    options: Mapping[str, Any]
    wake: Callable[[], None]
    audio_format: AudioFormat = PCM
    stream: LiveStream | None = field(init=False, default=None)
    _kept: list[Samples] = field(init=False, default_factory=list)
    _num_kept: int = field(init=False, default=0)
    _is_finished: bool = field(init=False, default=False)
    _lock: Lock = field(init=False, default_factory=Lock)

    def __post_init__(self) -> None:
        self.stats = GenerationStats()
        self._resampler: Resampler | None = Resampler(self.audio_format.rate)

    @property
    def waiting_seconds(self) -> float:
        """The duration in seconds of the audio that no hypothesis covers yet."""
        with self._lock:
            return self._num_kept / SAMPLE_RATE + (0.0 if self.stream is None else self.stream.waiting_seconds)

    def append(self, audio: bytes) -> None:
        """Append whole samples in the audio format."""
        assert self._resampler is not None
        self._pass_on(self._resampler.append(self.audio_format.samples(audio)))

    def finish(self) -> None:
        """End the speech, so that all of its text becomes final."""
        assert self._resampler is not None
        rest = self._resampler.finish()
        self.close()  # frees memory: many finished streams may wait for decoding
        self._pass_on(rest, is_finished=True)

    def close(self) -> None:
        """Free the resampler. Do not call `append` or `finish` afterwards."""
        self._resampler = None

    def _pass_on(self, samples: Samples, *, is_finished: bool = False) -> None:
        with self._lock:
            self._is_finished = is_finished
            if len(samples):  # the resampler often returns no samples, and many empty arrays would use memory
                self._kept.append(samples)
                self._num_kept += len(samples)
            self._empty()
        self.wake()

    def start(self, scheduler: Scheduler, number: int) -> Iterable[Progress]:
        stream = scheduler.open_stream(self.options)
        with self._lock:
            self.stream = stream
            self._empty()
        return scheduler.start(number, stream)

    def _empty(self) -> None:
        """Pass the buffered samples to the stream, if it is open."""
        if self.stream is not None:
            for samples in self._kept:
                self.stream.append(samples)
            self._kept, self._num_kept = [], 0
            if self._is_finished:
                self.stream.finish()

    def check(self, limits: Limits) -> None:
        """Check nothing, because `RealtimeSession` has checked the options."""

    def add(self, progress: LiveUpdate) -> None:
        assert self.stats is not None
        self.stats.add(progress.stats)
        if progress.is_last:
            self.finish_reason = "stop"

    def error_of(self, error: Exception) -> ServerError:
        return ServerError.of(error, FIELD_PATHS)
