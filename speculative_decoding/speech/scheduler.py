"""Transcribes several recordings together. The engine decodes one window of each at a time, as a request."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from ..decoding.request import Request
from ..draft_length.base import DraftLength
from ..engine import Engine
from ..errors import InputError, note
from ..loading.tokenizer import Tokenizer
from ..models.audio import AudioFrames
from ..models.base import EncoderDecoder
from ..models.speech_languages import code_of_language
from ..models.threads import use_mlx
from ..models.whisper_tokens import AudioConfig
from ..rows import drive
from ..sampling import GenerationOptions
from ..sampling.options import short_repr
from .audio_file import Audio
from .draft_texts import GivenTranscript, RecordingDraft
from .keywords import split_names
from .options import TranscriptionOptions
from .recording import Recording, open_audio
from .segments import FRAMES_PER_SECOND, DecodedWindow, Segment
from .speech_text import SpeechText
from .transcription import Attempt, Transcriber, Transcription, WindowSource
from .voice import SpeechTimes
from .window_requests import WindowRequests, detected_language

KEPT_DRAFT_TEXTS = 4  # prepared draft texts that are kept for other recordings


class TranscriptionEvent(NamedTuple):
    """The progress of one recording.

    Args:
        number: The number of the recording.
        segments: The segments finished since the last event of the recording.
        position: How many seconds have been transcribed.
        seconds: The duration of the recording.
        language: The language of the speech; None if the recording could not be opened.
        result: Set in the last event, unless there is an error.
        error: Why the recording cannot be transcribed: an `InputError` about the file, or an `ArithmeticError` about
            logits that are not finite.
    """

    number: int
    segments: list[Segment]
    position: float
    seconds: float
    language: str | None
    result: Transcription | None = None
    error: Exception | None = None

    @property
    def is_last(self) -> bool:
        """Whether no other event of this recording follows."""
        return self.result is not None or self.error is not None


@dataclass(frozen=True, eq=False)
class Task:
    """A recording, and how to transcribe it.

    first_frame: Where it begins, if it is part of a longer recording.
    speech: Where the frames of the whole recording come from, if something has been left out.
    """

    recording: WindowSource
    options: TranscriptionOptions
    decoding: GenerationOptions  # drafts, sampling, beams
    first_frame: int = 0
    speech: SpeechTimes | None = None


@dataclass
class Running:
    """A recording that is being transcribed.

    attempt: The next attempt while the recording is paused; None while an attempt is being decoded.
    from_draft: Whether each token of the attempt being decoded is an accepted draft token.
    """

    number: int
    transcriber: Transcriber
    requests: WindowRequests
    attempts: Generator[Attempt, DecodedWindow, None]
    attempt: Attempt | None = None
    from_draft: list[bool] = field(default_factory=list)
    speech: SpeechTimes | None = None
    segments: list[Segment] = field(default_factory=list)  # in the events so far

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
        return TranscriptionEvent(self.number, new, position, seconds, found.language, result)


@dataclass
class Scheduler:
    """Decodes the windows of several recordings side by side; a `rows.Scheduler`.

    A caller that shares slots between clients uses `start`, `decode_round` and `resume` instead of `submit` and `step`.
    A recording that is `paused` between two outputs has no slot until it is resumed. Each recording has separate state,
    so its text does not depend on when it is resumed.

    Args:
        model: A speech model.
        tokenizer: The tokenizer of the model.
        options: How to transcribe recordings that have no options of their own.
        decoding: How to decode these recordings: drafts, sampling, beams.
        slots: How many recordings are transcribed together.
        new_engine: Creates an engine for requests with these options.
        draft_length: Creates the `DraftLength` of a request with these options.
        num_mel_bins: See `Recording`.
    """

    model: EncoderDecoder
    tokenizer: Tokenizer
    options: TranscriptionOptions
    decoding: GenerationOptions
    slots: int
    new_engine: Callable[[GenerationOptions, int], Engine]
    draft_length: Callable[[GenerationOptions, int], DraftLength]
    num_mel_bins: Sequence[int]
    _engines: dict[int, Engine] = field(init=False, default_factory=dict)  # by number of beams
    _decoding: dict[Request, Running] = field(init=False, default_factory=dict)  # by the request for the current window
    _paused: dict[int, Running] = field(init=False, default_factory=dict)  # by number

    def __post_init__(self) -> None:
        language_code(self.model.audio, self.options)
        assert self.model.audio is not None
        self.audio = self.model.audio
        self._text = SpeechText(self.tokenizer, self.audio)
        # The parts of a recording, and several recordings, may give the same text
        self._transcript = lru_cache(KEPT_DRAFT_TEXTS)(self._prepared)

    def open(self, recording: Audio | Recording | Mapping[str, Any]) -> Task:
        """Open a file, samples, or a mapping with an "audio" entry and options. Raises `InputError`."""
        own = dict(recording) if isinstance(recording, Mapping) else {"audio": recording}
        if "audio" not in own:
            raise InputError("is missing: this model transcribes speech", "audio", "name a file")
        audio = own.pop("audio")
        options, decoding = self._options(own)
        recording = open_audio(audio, self.num_mel_bins, voice=options.voice)
        return Task(recording, options, decoding, speech=recording.speech)

    def task(self, recording: Recording, overrides: Mapping[str, Any]) -> Task:
        """Return the task for a recording with its own options. Raises `InputError` naming an unusable option."""
        return Task(recording, *self._options(overrides), speech=recording.speech)

    def _options(self, overrides: Mapping[str, Any]) -> tuple[TranscriptionOptions, GenerationOptions]:
        own, decoding = split_names(overrides)
        return replace(self.options, **own), self.decoding.override_for_row(decoding)

    @property
    def running(self) -> int:
        """The number of recordings that have a slot."""
        return len(self._decoding)

    @property
    def paused(self) -> list[int]:
        """The numbers of the recordings that wait for `resume`."""
        return [*self._paused]

    @property
    def wants_more(self) -> bool:
        return self.running < self.slots

    @property
    def is_idle(self) -> bool:
        return not self._decoding

    def run(self, recordings: Iterable[Callable[[], Task]]) -> Iterator[TranscriptionEvent]:
        """Transcribe recordings, opening each when a slot is free. Events of different recordings are interleaved."""
        return drive(self, enumerate(recordings))

    def submit(self, item: tuple[int, Callable[[], Task]]) -> Iterator[TranscriptionEvent]:
        """Open a numbered recording, and give it a slot."""
        number, open_recording = item
        try:
            yield from self.start(number, open_recording())
        except InputError as error:
            yield TranscriptionEvent(number, [], 0.0, 0.0, None, error=error)
        yield from self._resume_all()

    def step(self) -> Iterator[TranscriptionEvent]:
        """Run a round, then resume every paused recording."""
        yield from self.decode_round()
        yield from self._resume_all()

    def _resume_all(self) -> Iterator[TranscriptionEvent]:
        for number in self.paused:
            yield from self.resume(number)

    def start(self, number: int, task: Task) -> Iterator[TranscriptionEvent]:
        """Prepare a recording, and pause it. Raises `InputError` if it cannot be transcribed with its options."""
        use_mlx()
        recording, options = task.recording, task.options
        if options.word_timestamps and self.audio.alignment_note:
            note(self.audio.alignment_note)
        language, opening = language_code(self.audio, options), None
        if language is None:
            language, opening = self._detect(recording)
        output_language = options.output_language(language)
        given = [self._transcript(text, output_language, task.speech) for text in task.decoding.draft_text]
        drafts = [RecordingDraft(transcript) for transcript in given if transcript.words.ids]
        requests = WindowRequests(self.model, self._text, language, options, task.decoding, task.first_frame, drafts)
        most = requests.max_positions // 2 - 1
        transcriber = Transcriber(recording, self._text, language, options, requests.align, most, opening)
        one = Running(number, transcriber, requests, transcriber.attempts(), speech=task.speech)
        yield one.event()
        yield from self._advance(one, None)

    def _prepared(self, text: str, language: str, speech: SpeechTimes | None) -> GivenTranscript:
        return GivenTranscript(text, self._text, language, self.model.pieces or {}, speech)

    def decode_round(self) -> Iterator[TranscriptionEvent]:
        """Run a round of every recording that has a slot. A recording is paused when its output is complete."""
        for engine in [*self._engines.values()]:
            for event in engine.step():
                request = event.request
                one = self._decoding[request]
                one.from_draft += event.round.from_draft
                if request.finish_reason:
                    del self._decoding[request]
                    one.transcriber.stats.add(request.stats)
                    if request.error:
                        yield one.event()._replace(error=ArithmeticError(request.error))
                    else:
                        output = replace(one.requests.decoded(request), from_draft=one.from_draft)
                        yield from self._advance(one, output)

    def resume(self, number: int) -> Iterator[TranscriptionEvent]:
        """Give a paused recording a slot. Yields an event only if it fails."""
        one = self._paused.pop(number)
        attempt, one.attempt, one.from_draft = one.attempt, None, []
        assert attempt is not None
        try:
            start = one.requests.decoder_prompt(attempt)
            length = self.draft_length(start.options, self.slots)
            request = self._engine(start.options).submit(attempt.window.audio, start.options, length, start)
        except InputError as error:
            yield one.event()._replace(error=error)
            return
        self._decoding[request] = one

    def cancel(self, number: int) -> None:
        """Drop a recording and free its slot. Does nothing if the recording is finished."""
        self._paused.pop(number, None)
        for request, one in [*self._decoding.items()]:
            if one.number == number:
                self._engine(request.options).cancel(request)
                del self._decoding[request]

    def _detect(self, recording: WindowSource) -> tuple[str, AudioFrames]:
        """Return the language of the first 30 seconds, and their frames."""
        length = self.audio.window_frames
        opening = recording.window(0, length, length)
        return detected_language(self.model, self.audio, opening), opening

    def _advance(self, one: Running, output: DecodedWindow | None) -> Iterator[TranscriptionEvent]:
        """Pass an output to a recording, and pause the recording before its next attempt."""
        seek = one.transcriber.seek
        try:
            one.attempt = next(one.attempts) if output is None else one.attempts.send(output)
        except StopIteration:
            yield one.event(is_last=True)
            return
        self._paused[one.number] = one
        if one.transcriber.seek != seek:
            yield one.event()

    def _engine(self, options: GenerationOptions) -> Engine:
        if options.num_beams not in self._engines:
            self._engines[options.num_beams] = self.new_engine(options, self.slots)
        return self._engines[options.num_beams]


def language_code(audio: AudioConfig | None, options: TranscriptionOptions) -> str | None:
    """Return the code of the language, or None if it must be detected.

    audio: The audio config of a model; None if the model reads text.

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
