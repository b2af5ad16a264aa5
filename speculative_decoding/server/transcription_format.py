"""OpenAI's format for transcriptions and translations of speech: parses forms, and builds responses and events.

All `TranscriptionOptions`, and the decoding options in `DECODING`, are accepted as additional fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from ..errors import InputError
from ..models.speech_languages import NAMES
from ..models.whisper_tokens import AudioConfig
from ..rows.scheduling import Progress
from ..sampling import GenerationOptions
from ..sampling.values import Bool, ListOf, Text
from ..speech.keywords import DECODING, split_options
from ..speech.live.update import Piece, merge_pieces
from ..speech.options import TranscriptionOptions, transcription_specs
from ..speech.recording import Recording
from ..speech.scheduler import Scheduler, Task, TranscriptionEvent, language_code
from ..speech.segments import Segment
from ..speech.speech_text import SpeechText
from ..speech.transcription import Transcription, write
from .client_request import ClientItem
from .completions import draft_usage
from .errors import ServerError
from .fields import Field, File, option_fields, option_names, parse_fields
from .limits import Limits
from .model_names import ModelNames
from .multipart import Part

SUBTITLES = {"srt": "application/x-subrip", "vtt": "text/vtt"}  # format -> media type
FORMATS = ("json", "verbose_json", "text", *SUBTITLES)
GRANULARITIES = ("word", "segment")
NO_OPTION = Field(refused="is not a field of this API; leave it out")
NO_SPEAKERS = Field(ListOf(Text()), refused="is not supported: speakers are not distinguished")
FIELDS: Mapping[str, Field] = {
    "file": Field(File(), option="audio", required="a recording"),
    "model": Field(),
    "prompt": Field(option="initial_prompt"),
    "response_format": Field(Text(FORMATS)),
    "timestamp_granularities": Field(ListOf(Text(GRANULARITIES)), option="word_timestamps"),
    "stream": Field(Bool()),
    "rounds": Field(Bool()),
    **{name: field if name in DECODING else NO_OPTION for name, field in option_fields().items()},
    **{name: Field(spec.type) for name, spec in transcription_specs().items()},
    # OpenAI's fields that the server does not support
    "include": Field(
        ListOf(Text()),
        refused="is not supported: log-probabilities are only returned as averages, with response_format verbose_json",
    ),
    "chunking_strategy": Field(refused="is not supported: the server chooses the windows"),
    "known_speaker_names": NO_SPEAKERS,
    "known_speaker_references": NO_SPEAKERS,
    # Options that have a different name in this API, or that could make the server read a file repeatedly
    "task": Field(refused="is not a field of this API; send the recording to /v1/audio/translations"),
    "word_timestamps": Field(refused="is not a field of this API; use timestamp_granularities[]"),
    "initial_prompt": Field(refused="is not a field of this API; use prompt"),
    "src_lang": Field(refused="is not a field of this API; use language"),
    "max_tokens": Field(refused="is not a field of this API; use sample_len"),
    "clip_timestamps": Field(refused="is not a field of this API; send only this part of the recording"),
}
FIELD_NAMES = option_names(FIELDS)


@dataclass(eq=False)
class ClientRecording(ClientItem):
    """A recording from a client.

    Args:
        recording: The frames.
        options: Transcription options.
        decoding: Decoding options, for drafts, sampling and beams.
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


@dataclass(frozen=True)
class TranscriptionRequest:
    """The fields of a request."""

    content: bytes  # the file's contents
    options: TranscriptionOptions
    decoding: GenerationOptions
    response_format: str
    granularities: Sequence[str]
    stream: bool
    rounds: bool  # whether events mark text from accepted drafts; not an OpenAI field


def parse_transcription_request(
    parts: list[Part], task: str, names: ModelNames, audio: AudioConfig, defaults: GenerationOptions
) -> TranscriptionRequest:
    """Parse a form. Raises a `ServerError` that names the field.

    Args:
        parts: The fields.
        task: One of `TASKS`.
        names: The names of the served model.
        audio: The model's audio config.
        defaults: The server's decoding options.
    """
    options = parse_fields(parts, FIELDS)
    names.find(options.pop("model", None))
    content = options.pop("audio").content
    granularities = options.pop("word_timestamps", ())
    response_format = options.pop("response_format", "json")
    stream, rounds = options.pop("stream", False), options.pop("rounds", False)
    if stream and response_format != "json":
        raise ServerError.of_field("stream", f"must be false with response_format {response_format}; use json")
    if rounds and not stream:
        raise ServerError.of_field("rounds", "has no effect without stream; leave it out")
    if granularities and response_format != "verbose_json":
        problem = f"has no effect with response_format {response_format}; use verbose_json"
        raise ServerError.of_field("timestamp_granularities", problem)

    options |= {"task": task, "word_timestamps": "word" in granularities}
    if options.get("temperature") == 0:
        del options["temperature"]  # in this API, 0 means what our default means: the temperature may rise
    try:
        own, given = split_options(options, audio)
        language_code(audio, own)
        decoding = defaults.override_for_row(given)
        decoding.with_values(temperature=1.0).require_effect(given)  # the temperature may rise
    except InputError as error:
        raise ServerError.of(error, FIELD_NAMES) from None
    return TranscriptionRequest(content, own, decoding, response_format, granularities or ("segment",), stream, rounds)


def transcription_response(request: TranscriptionRequest, result: Transcription) -> Response:
    """Return the response in the requested format."""
    text = result.text.strip()
    match request.response_format:
        case "json":
            return JSONResponse({"text": text, "usage": usage(result)})
        case "verbose_json":
            return JSONResponse(verbose(request, result))
        case "text":
            return PlainTextResponse(text + "\n")
        case name:
            return PlainTextResponse(write(name, result), media_type=SUBTITLES[name])


def verbose(request: TranscriptionRequest, result: Transcription) -> dict[str, Any]:
    language = request.options.output_language(result.language)
    fields = {
        "task": request.options.task,
        "language": NAMES.get(language, language),  # the text's; a name such as "english", as in OpenAI's API
        "duration": result.seconds,
        "text": result.text.strip(),
    }
    if "segment" in request.granularities:
        segments = [segment.as_dict() for segment in result.segments]
        fields["segments"] = [{name: value for name, value in each.items() if name != "words"} for each in segments]
    if "word" in request.granularities:
        words = [word for segment in result.segments for word in segment.words or ()]
        fields["words"] = [{"word": word.word.strip(), "start": word.start, "end": word.end} for word in words]
    return fields | {"usage": usage(result)}


def usage(result: Transcription) -> dict[str, Any]:
    return {"type": "duration", "seconds": result.seconds}


def delta_event(
    item: ClientRecording, progress: TranscriptionEvent, text_tokens: SpeechText | None = None
) -> dict[str, Any] | None:
    """Return the event for new segments, or None. In a recording's first event, the text has no leading space.

    text_tokens: Decodes the model's tokens, for requests with `rounds`.
    """
    if not progress.segments:
        return None
    text = "".join(segment.text for segment in progress.segments)
    is_first = item.num_segments == len(progress.segments)
    event: dict[str, Any] = {"type": "transcript.text.delta", "delta": text.lstrip() if is_first else text}
    if text_tokens is not None:
        event["pieces"] = [piece._asdict() for piece in pieces_of(progress.segments, text_tokens)]
    return event


def pieces_of(segments: Sequence[Segment], text_tokens: SpeechText) -> list[Piece]:
    """Return the text of segments, divided into text from accepted drafts and other text."""
    parts: list[Piece] = []
    for segment in segments:
        pairs = zip(segment.tokens, segment.from_draft, strict=True)
        shown = [(token, drafted) for token, drafted in pairs if text_tokens.audio.is_text(token)]
        drafts = (drafted for _, drafted in shown)
        for text, own in text_tokens.characters([token for token, _ in shown]):
            parts.append(Piece(text, all([*islice(drafts, len(own))])))
    return merge_pieces(parts)


def done_events(item: ClientRecording, rounds: bool) -> list[dict[str, Any]]:
    assert item.result is not None
    event = {"type": "transcript.text.done", "text": item.result.text.strip()}
    return [event | {"usage": usage(item.result) | draft_usage(item.result.stats)} if rounds else event]
