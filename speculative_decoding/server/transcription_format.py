"""OpenAI's format of transcriptions and translations of speech: parses forms, and builds responses and events.

The options of `TranscriptionOptions` are additional fields, as are decoding options that may differ between recordings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from ..decoding.results import GenerationStats
from ..errors import InputError
from ..models.whisper_tokens import AudioConfig
from ..sampling import GenerationOptions
from ..sampling.options import option_specs, refusal
from ..sampling.values import Bool, ListOf, Text, Value
from ..speech.formats import write
from ..speech.keywords import split_options
from ..speech.live.update import Piece, merge_pieces
from ..speech.options import TranscriptionOptions, transcription_specs
from ..speech.scheduler import TranscriptionEvent, language_code
from ..speech.segments import Segment
from ..speech.speech_text import SpeechText
from ..speech.transcription import Transcription
from .errors import ServerError
from .model_names import ModelNames
from .multipart import Part
from .recordings import ClientRecording, field_name

SUBTITLES = {"srt": "application/x-subrip", "vtt": "text/vtt"}  # the media type of each format
FORMATS = ("json", "verbose_json", "text", *SUBTITLES)
GRANULARITIES = ("word", "segment")
UNSUPPORTED = {  # OpenAI's fields that are refused, and the reason
    "include": "log-probabilities are only returned as averages, with response_format verbose_json",
    "chunking_strategy": "windows follow the speech",
    "known_speaker_names": "speakers are not told apart",
    "known_speaker_references": "speakers are not told apart",
}
# Options that have another name in this API, or that would let a client make the server read a file repeatedly
OTHER_OPTIONS = {
    "task": "send the recording to /v1/audio/translations",
    "word_timestamps": "use timestamp_granularities[]",
    "initial_prompt": "use prompt",
    "src_lang": "use language",
    "clip_timestamps": "send only this part of the recording",
}
FIELDS: Mapping[str, Value] = {
    **{name: spec.type for name, spec in option_specs().items() if spec.per_row},
    **{name: spec.type for name, spec in transcription_specs().items()},
    "model": Text(may_be_empty=True),
    "prompt": Text(may_be_empty=True),
    "response_format": Text(FORMATS),
    "stream": Bool(),
    "rounds": Bool(),
    "timestamp_granularities": ListOf(Text(GRANULARITIES)),
}


@dataclass(frozen=True)
class TranscriptionRequest:
    """The fields of a request."""

    content: bytes  # of the file
    options: TranscriptionOptions
    decoding: GenerationOptions
    response_format: str
    granularities: Sequence[str]
    stream: bool
    rounds: bool  # not an OpenAI field: events say which text was drafted

    @property
    def is_translation(self) -> bool:
        return self.options.task == "translate"


def parse_transcription_request(
    parts: Sequence[Part], task: str, names: ModelNames, audio: AudioConfig, defaults: GenerationOptions
) -> TranscriptionRequest:
    """Parse a form. Raises a `ServerError` that names the field.

    Args:
        parts: The fields.
        task: One of `TASKS`.
        names: The names of the served model.
        audio: The model's audio config.
        defaults: The server's decoding options.
    """
    content, fields = parse_fields(parts)
    granularities = fields.pop("timestamp_granularities", ())
    names.require(fields.pop("model", names.id))
    response_format = fields.pop("response_format", "json")
    stream = fields.pop("stream", False)
    rounds = fields.pop("rounds", False)
    if stream and response_format != "json":
        raise ServerError(400, f"stream: must be false with response_format {response_format}; use json", "stream")
    if rounds and not stream:
        raise ServerError(400, "rounds: has no effect without stream; leave it out", "rounds")
    if granularities and response_format != "verbose_json":
        message = f"timestamp_granularities: has no effect with response_format {response_format}; use verbose_json"
        raise ServerError(400, message, "timestamp_granularities")

    options = fields | {"task": task, "word_timestamps": "word" in granularities}
    if "prompt" in options:
        options["initial_prompt"] = options.pop("prompt")
    if options.get("temperature") == 0:
        del options["temperature"]  # in this API, 0 lets the temperature rise where necessary, like the default
    try:
        own, given = split_options(options, audio)
        language_code(audio, own)
        decoding = defaults.override_for_row(given)
        decoding.with_values(temperature=1.0).require_effect(given)  # the temperature may rise
    except InputError as error:
        raise ServerError.of(error, field_name) from None
    return TranscriptionRequest(content, own, decoding, response_format, granularities or ["segment"], stream, rounds)


def parse_fields(parts: Sequence[Part]) -> tuple[bytes, dict[str, Any]]:
    """Return the content of the file, and the values of all other fields. A field that is a list may be repeated.

    Empty fields are left out, because programs send them for inputs that the user left blank.
    """
    content: bytes | None = None
    fields: dict[str, Any] = {}
    for part in parts:
        name = part.name.removesuffix("[]")
        is_list = isinstance(FIELDS.get(name), ListOf)
        if (name in fields and not is_list) or (name == "file" and content is not None):
            raise ServerError(400, f"{name[:80]}: is given twice", name)
        if part.is_file != (name == "file"):
            raise ServerError(400, f"{name[:80]}: must {'not ' if part.is_file else ''}be a file", name[:80])
        if name == "file":
            content = part.content
        elif not part.content and (name in FIELDS or name in UNSUPPORTED or name in OTHER_OPTIONS):
            continue
        elif is_list:
            fields[name] = [*fields.get(name, ()), parse_value(name, part.content)]
        else:
            fields[name] = parse_value(name, part.content)
    if content is None:
        raise ServerError(400, "file: is missing; send a recording", "file")
    return content, fields


def parse_value(name: str, content: bytes) -> Any:
    """Parse the text of a field, or one item of a list. Raises a `ServerError` that names the field."""
    if name in UNSUPPORTED:
        raise ServerError(400, f"{name}: is not supported: {UNSUPPORTED[name]}", name, "unsupported_value")
    if name in OTHER_OPTIONS:
        raise ServerError(400, f"{name}: is not a field of this API; {OTHER_OPTIONS[name]}", name, "unsupported_value")
    if name not in FIELDS:
        raise ServerError.unknown_field(name, [each for each in FIELDS if each not in OTHER_OPTIONS])
    value = FIELDS[name]
    if isinstance(value, ListOf):
        value = value.item
    try:
        text = content.decode()
        return value.parse(text)
    except UnicodeDecodeError:
        raise ServerError(400, f"{name}: is not UTF-8", name, "invalid_value") from None
    except (ValueError, TypeError, OverflowError):
        raise ServerError(400, f"{name}: {refusal(value, text)}", name, "invalid_value") from None


def transcription_response(request: TranscriptionRequest, result: Transcription) -> Response:
    """Return the response in the format that the client asked for."""
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
    fields = {
        "task": request.options.task,
        "language": "en" if request.is_translation else result.language,  # of the text
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
    """Return the event for new segments. A recording's first event begins without a space.

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
    """Return the text of segments, divided where it changes between accepted drafts and other text."""
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


def draft_usage(stats: GenerationStats) -> dict[str, int]:
    """Return the counts, with the names that completions have."""
    return {
        "completion_tokens": stats.generated_tokens,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "target_calls": stats.target_calls,
    }
