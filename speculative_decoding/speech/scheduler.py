"""Transcribes recordings and live streams together. An engine decodes their current windows as requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

from ..decoding.request import Request
from ..decoding.results import GenerationStats
from ..draft_length.base import DraftLength
from ..engine import Engine
from ..errors import InputError, note
from ..loading.tokenizer import Tokenizer
from ..models.base import EncoderDecoder
from ..models.speech_languages import code_of_language
from ..models.threads import use_mlx
from ..models.whisper_tokens import AudioConfig
from ..rows.scheduling import drive
from ..sampling import GenerationOptions
from ..sampling.options import short_repr, validate
from .audio_file import Audio
from .draft_texts import GivenTranscript, RecordingDraft
from .keywords import split_names
from .live.stream import EVERY, LiveStream, require_live
from .live.update import LiveUpdate
from .options import TranscriptionOptions
from .recording import Recording, open_audio
from .segments import FRAMES_PER_SECOND, DecodedWindow, Segment
from .speech_text import SpeechText
from .transcription import Attempt, ResumePoint, Transcriber, Transcription, WindowSource
from .voice import SpeechTimes
from .window_requests import WindowRequests, detected_language

KEPT_DRAFT_TEXTS = 4  # prepared draft texts that are cached for later recordings


class TranscriptionEvent(NamedTuple):
    """The progress of one recording.

    Args:
        number: The number of the recording.
        segments: The segments finished since the last event of the recording.
        position: The number of seconds that have been transcribed.
        seconds: The duration of the recording.
        language: The language of the speech; None if the recording could not be opened.
        result: Set in the last event, unless there is an error.
        error: The reason why the recording cannot be transcribed: an `InputError` about the file, or an
            `ArithmeticError` about logits that are not finite.
        resume_point: The point at which an interrupted transcription can resume (see `Session.transcribe_batch`); None
            if a window is incomplete.
    """

    number: int
    segments: list[Segment]
    position: float
    seconds: float
    language: str | None
    result: Transcription | None = None
    error: Exception | None = None
    resume_point: ResumePoint | None = None

    @property
    def is_last(self) -> bool:
        """Whether this is the recording's last event."""
        return self.result is not None or self.error is not None


Event = TranscriptionEvent | LiveUpdate


@dataclass(frozen=True, eq=False)
class Task:
    """A recording with its options.

    first_frame: The recording's first frame within the whole recording of which it is a part; otherwise 0.
    speech: The times of the kept audio in the whole recording if voice detection is on.
    resume_from: The point at which to resume.
    """

    recording: WindowSource
    options: TranscriptionOptions
    decoding: GenerationOptions  # drafts, sampling, beams
    first_frame: int = 0
    speech: SpeechTimes | None = None
    resume_from: ResumePoint | None = None


@dataclass(eq=False)
class RecordingWindows:
    """The windows of a recording. The next window can always be decoded immediately."""

    number: int
    transcriber: Transcriber
    requests: WindowRequests
    speech: SpeechTimes | None
    segments: list[Segment] = field(init=False, default_factory=list)  # in the events returned so far
    is_live = False
    is_due = True

    def __post_init__(self) -> None:
        self._attempts = self.transcriber.attempts()

    def advance(self, output: DecodedWindow | None = None) -> TranscriptionEvent | None:
        """Send the last attempt's output to the transcriber, and get the next attempt. Returns an event on progress."""
        seek = self.transcriber.seek
        try:
            self._attempt = next(self._attempts) if output is None else self._attempts.send(output)
        except StopIteration:
            return self.event(is_last=True)
        return self.event() if self.transcriber.seek != seek else None

    def next_attempt(self) -> Attempt:
        return self._attempt

    def add(self, output: DecodedWindow, stats: GenerationStats) -> TranscriptionEvent | None:
        self.transcriber.stats.add(stats)
        return self.advance(output)

    def failed(self, error: Exception) -> TranscriptionEvent:
        return self.event()._replace(error=error)

    def event(self, *, is_last: bool = False) -> TranscriptionEvent:
        found = self.transcriber
        new = found.segments[len(self.segments) :]
        frames = found.recording.num_frames
        position, seconds = min(found.seek, frames) / FRAMES_PER_SECOND, frames / FRAMES_PER_SECOND
        if self.speech is not None:
            first = self.requests.first_frame / FRAMES_PER_SECOND
            new = [self.speech.restored(segment, first) for segment in new]
            position, seconds = self.speech.reached(first + position) - first, self.speech.seconds
        self.segments += new
        result = replace(found.result(), segments=self.segments, seconds=seconds) if is_last else None
        point = found.resume_point
        return TranscriptionEvent(self.number, new, position, seconds, found.language, result, resume_point=point)


Windows = RecordingWindows | LiveStream


@dataclass
class Scheduler:
    """Decodes the windows of recordings and live streams side by side. Implements `rows.scheduling.Scheduler`.

    A caller that shares slots between clients calls `start`, `decode_round` and `resume` instead of `submit` and
    `step`. A recording or stream that is `paused` between two outputs has no slot until it is resumed. Recordings and
    streams share no state, so a transcript does not depend on when its recording is resumed. Streams have their own
    engines, so recordings cannot use their slots.

    Args:
        model: A speech model.
        tokenizer: The model's tokenizer.
        options: How to transcribe recordings and streams, unless they have their own options.
        decoding: How to decode such recordings: drafts, sampling, beams.
        slots: The number of recordings that are transcribed together.
        new_engine: Creates an engine for requests with the given options and number of slots.
        draft_length: Creates the `DraftLength` for a request with the given options and number of slots.
        num_mel_bins: See `Recording`.
        live_decoding: How to decode live streams, without beam search.
        live_slots: The maximum number of streams; 0 if there are none.
    """

    model: EncoderDecoder
    tokenizer: Tokenizer
    options: TranscriptionOptions
    decoding: GenerationOptions
    slots: int
    new_engine: Callable[[GenerationOptions, int], Engine]
    draft_length: Callable[[GenerationOptions, int], DraftLength]
    num_mel_bins: Sequence[int]
    live_decoding: GenerationOptions | None = None
    live_slots: int = 0
    _engines: dict[tuple[bool, int], Engine] = field(init=False, default_factory=dict)  # by `is_live` and beams
    # Keyed by the request for the current window; with `from_draft` for each token that its rounds have produced
    _decoding: dict[Request, tuple[Windows, list[bool]]] = field(init=False, default_factory=dict)
    _waiting: dict[int, Windows] = field(init=False, default_factory=dict)  # by number

    def __post_init__(self) -> None:
        language_code(self.model.audio, self.options)
        assert self.model.audio is not None
        self.audio = self.model.audio
        self._text = SpeechText(self.tokenizer, self.audio)
        # Several recordings, or the parts of one, may have the same draft text
        self._transcript = lru_cache(KEPT_DRAFT_TEXTS)(self._prepared)
        if self.live_slots and self.live_decoding is not None:  # so that the first stream does not wait for calibration
            self._engine(self.live_decoding, is_live=True)

    def open(self, recording: Audio | Recording | Mapping[str, Any]) -> Task:
        """Open a recording; see `Session.transcribe_batch`. Raises `InputError`."""
        own = dict(recording) if isinstance(recording, Mapping) else {"audio": recording}
        if "audio" not in own:
            raise InputError("is missing: this model transcribes speech", "audio", "name a file")
        audio, resume_from = own.pop("audio"), cast("ResumePoint | None", own.pop("resume_from", None))
        options, decoding = self._options(own, self.decoding)
        recording = open_audio(audio, self.num_mel_bins, voice=options.voice, track=options.audio_track)
        return Task(recording, options, decoding, speech=recording.speech, resume_from=resume_from)

    def open_stream(self, overrides: Mapping[str, Any] | None = None, every: float = 1.0) -> LiveStream:
        """Return a new stream with its own options, to pass to `start`. Raises `InputError`.

        every: See `LiveStream`.
        """
        assert self.live_decoding is not None
        require_live(overrides or {})
        options, decoding = self._options(overrides or {}, self.live_decoding)
        every = validate("every", EVERY, every)
        requests = self._requests(options, decoding, language_code(self.audio, options) or "")
        return LiveStream(requests, self.num_mel_bins, every)

    def _options(
        self, overrides: Mapping[str, Any], decoding: GenerationOptions
    ) -> tuple[TranscriptionOptions, GenerationOptions]:
        own, changed = split_names(overrides)
        return replace(self.options, **own), decoding.override_for_row(changed)

    def decode(self, tokens: Iterable[int]) -> str:
        """Decode tokens of a transcript to text."""
        return self._text.decode([*tokens])

    @property
    def running(self) -> int:
        """The number of recordings and streams that hold a slot. A stream holds its slot from start to end."""
        return len(self._decoding) + sum(windows.is_live for windows in self._waiting.values())

    @property
    def paused(self) -> list[int]:
        """The numbers of the recordings and streams whose next window can be decoded after `resume`."""
        return [number for number, windows in self._waiting.items() if windows.is_due]

    @property
    def waiting(self) -> int:
        """The number of recordings that are waiting for a slot."""
        return sum(not windows.is_live for windows in self._waiting.values())

    @property
    def free_turns(self) -> int:
        """The number of free slots for recordings. Streams have their own slots."""
        return self.slots - sum(not windows.is_live for windows, _ in self._decoding.values())

    @property
    def wants_more(self) -> bool:
        return self.free_turns > 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being decoded or paused. New audio of a stream may change this."""
        return not (self._decoding or self.paused)

    def run(self, recordings: Iterable[Callable[[], Task]]) -> Iterator[TranscriptionEvent]:
        """Transcribe recordings. Each is opened when a slot becomes free. The recordings' events are interleaved."""
        return cast("Iterator[TranscriptionEvent]", drive(self, enumerate(recordings)))

    def submit(self, item: tuple[int, Callable[[], Task | LiveStream]]) -> Iterator[Event]:
        """Open a numbered recording or stream, and give it a slot."""
        number, open_item = item
        try:
            yield from self.start(number, open_item())
        except InputError as error:
            yield TranscriptionEvent(number, [], 0.0, 0.0, None, error=error)
        yield from self._resume_all()

    def step(self) -> Iterator[Event]:
        """Run a round, then resume everything that is paused."""
        yield from self.decode_round()
        yield from self._resume_all()

    def _resume_all(self) -> Iterator[Event]:
        for number in self.paused:
            yield from self.resume(number)

    def start(self, number: int, task: Task | LiveStream) -> Iterator[Event]:
        """Prepare a recording or stream, and pause it. Raises `InputError` if its options cannot be used."""
        use_mlx()
        if isinstance(task, LiveStream):
            task.number = number
            self._waiting[number] = task
            return
        recording, options = task.recording, task.options
        if options.word_timestamps and self.audio.alignment_note:
            note(self.audio.alignment_note)
        language, opening = language_code(self.audio, options), None
        if task.resume_from is not None:
            language = task.resume_from.language
        if language is None:
            length = self.audio.window_frames
            opening = recording.window(0, length, length)
            language = detected_language(self.model, self.audio, opening)
        requests = self._requests(options, task.decoding, language, task.first_frame, task.speech)
        most = requests.max_previous
        given = recording, self._text, language, options, requests.align, most, opening, task.resume_from
        transcriber = Transcriber(*given)
        windows = RecordingWindows(number, transcriber, requests, task.speech)
        yield windows.event()
        yield from self._continue(windows, windows.advance())

    def _requests(
        self,
        options: TranscriptionOptions,
        decoding: GenerationOptions,
        language: str,
        first_frame: int = 0,
        speech: SpeechTimes | None = None,
    ) -> WindowRequests:
        output_language = options.output_language(language)
        given = [self._transcript(text, output_language, speech) for text in decoding.draft_text]
        drafts = [RecordingDraft(transcript) for transcript in given if transcript.words.ids]
        return WindowRequests(self.model, self._text, language, options, decoding, first_frame, drafts)

    def _prepared(self, text: str, language: str, speech: SpeechTimes | None) -> GivenTranscript:
        return GivenTranscript(text, self._text, language, speech)

    def decode_round(self) -> Iterator[Event]:
        """Run a round of all requests. A recording or stream releases its slot when its output is complete."""
        for engine in [each for each in self._engines.values() if not each.is_idle]:
            for request, round, _ in engine.step():
                windows, from_draft = self._decoding[request]
                from_draft += round.from_draft
                if request.finish_reason:
                    del self._decoding[request]
                    if request.error:
                        yield windows.failed(ArithmeticError(request.error))
                    else:
                        output = windows.requests.decoded(request, from_draft)
                        yield from self._continue(windows, windows.add(output, request.stats))

    def _continue(self, windows: Windows, event: Event | None) -> Iterator[Event]:
        """Yield the event unless it is None, and pause the recording or stream unless the event is its last one."""
        if event is None or not event.is_last:
            self._waiting[windows.number] = windows
        if event is not None:
            yield event

    def resume(self, number: int) -> Iterator[Event]:
        """Submit the next window of a paused recording or stream. Yields an event if there is none, or if it fails."""
        use_mlx()
        windows = self._waiting.pop(number)
        try:
            attempt = windows.next_attempt()
            if not isinstance(attempt, Attempt):
                yield from self._continue(windows, attempt)
                return
            start = windows.requests.decoder_prompt(attempt)
            length = self.draft_length(start.options, self._slots(windows.is_live))
            engine = self._engine(start.options, windows.is_live)
            request = engine.submit(attempt.window.audio, start.options, length, start)
        except InputError as error:
            yield windows.failed(error)
            return
        self._decoding[request] = windows, []

    def cancel(self, number: int) -> None:
        """Remove a recording or stream, and free its slot. Does nothing if it has ended."""
        self._waiting.pop(number, None)
        for request, (windows, _) in [*self._decoding.items()]:
            if windows.number == number:
                self._engine(request.options, windows.is_live).cancel(request)
                del self._decoding[request]

    def _engine(self, options: GenerationOptions, is_live: bool) -> Engine:
        key = is_live, options.num_beams
        if key not in self._engines:
            self._engines[key] = self.new_engine(options, self._slots(is_live))
        return self._engines[key]

    def _slots(self, is_live: bool) -> int:
        return self.live_slots if is_live else self.slots


def language_code(audio: AudioConfig | None, options: TranscriptionOptions) -> str | None:
    """Return the code of the language, or None if it must be detected.

    audio: A model's audio config; None if the model reads text.

    Raises:
        InputError: The model cannot transcribe with these options.
    """
    if audio is None:
        raise InputError("this model reads text and cannot transcribe", "audio", "load a speech model, such as Whisper")
    code = None if options.language is None else code_of_language(options.language)
    if not audio.is_multilingual:
        if options.task == "translate":
            raise InputError(
                "this model knows English only, and cannot translate",
                "task",
                "leave it out, or use a multilingual model",
            )
        if code not in (None, "en"):
            raise InputError(
                f"this model knows English only, not {short_repr(options.language)}",
                "language",
                "use a multilingual model",
            )
        return "en"
    if code is None or code in audio.languages:
        return code
    raise InputError(
        f"{short_repr(options.language)} is unknown",
        "language",
        f"choose one of the {len(audio.languages)} languages of this model: {', '.join(sorted(audio.languages))}",
    )
