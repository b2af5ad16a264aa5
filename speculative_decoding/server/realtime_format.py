"""OpenAI's Realtime format: parses a client's events and the settings of its session."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..models.whisper_tokens import AudioConfig
from ..sampling.options import short_repr, suggested_option
from ..sampling.values import Bool, Text
from ..speech.options import TranscriptionOptions
from ..speech.scheduler import language_code
from .errors import ServerError
from .fields import Anything, Field, option_names, parse_fields
from .limits import Limits
from .model_names import ModelNames

RATE = 24_000  # in Hz; the only sample rate that the API accepts
BYTES_PER_SAMPLE = 2
MAX_EVENT = 1 << 16  # maximum number of characters without audio, because parsing a megabyte of JSON takes 0.1 s
AUDIO = re.compile(r'"audio"\s{0,9}:\s{0,9}"(?:[^"\\]++|\\.)*+"')
MAX_EVENT_ID = 512  # characters, as in OpenAI's API
FORMAT: Mapping[str, Field] = {
    "type": Field(only="audio/pcm", refused="convert the audio"),
    "rate": Field(only=RATE, refused="resample the audio"),
}
TRANSCRIPTION_FIELDS: Mapping[str, Field] = {
    "model": Field(Anything()),
    "language": Field(),
    "prompt": Field(option="initial_prompt"),
    "delay": Field(refused="is not supported: text is sent as soon as two hypotheses agree on it"),
    "keywords": Field(refused="is not supported: put them into the prompt"),
    "languages": Field(refused="is not supported: send one language, or none for automatic detection"),
}
NO_TURNS = "the server does not detect turns; send input_audio_buffer.commit at the end of a turn"
INPUT_FIELDS: Mapping[str, Field] = {
    "format": Field(FORMAT),
    "transcription": Field(TRANSCRIPTION_FIELDS),
    "turn_detection": Field(refused=f"is not supported: {NO_TURNS}"),
    "noise_reduction": Field(refused="is not supported: Whisper models are trained with noise"),
}
SESSION: Mapping[str, Field] = {
    "type": Field(only="transcription", refused="this server only transcribes", required='"transcription"'),
    "audio": Field({"input": Field(INPUT_FIELDS)}),
    "include": Field(only=[], refused="log-probabilities are not sent"),
    "hypotheses": Field(Bool()),
}
QUERY: Mapping[str, Field] = {  # query parameters of the URL
    "intent": Field(Text(("transcription",))),
    "model": Field(Anything()),
}
OF_ALL: Mapping[str, Field] = {"type": Field(), "event_id": Field()}
EVENTS: Mapping[str, Mapping[str, Field]] = {  # type of an event that clients may send -> its fields
    "session.update": {**OF_ALL, "session": Field(SESSION, required="an object with the settings to change")},
    "input_audio_buffer.append": {**OF_ALL, "audio": Field(required="samples in base64")},
    "input_audio_buffer.commit": OF_ALL,
    "input_audio_buffer.clear": OF_ALL,
}
FIELD_PATHS = option_names(SESSION, "session.")


@dataclass(frozen=True)
class Settings:
    """The settings of a session. hypotheses: Whether deltas include text that may still change; not an OpenAI field."""

    model: str
    language: str | None = None
    prompt: str | None = None
    hypotheses: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The transcription options; see `TranscriptionOptions`."""
        chosen = {"language": self.language, "initial_prompt": self.prompt}
        return {name: value for name, value in chosen.items() if value is not None}

    @property
    def content(self) -> dict[str, Any]:
        transcription = {"model": self.model, "language": self.language, "prompt": self.prompt}
        own = {
            "format": {"type": "audio/pcm", "rate": RATE},
            "noise_reduction": None,
            "transcription": transcription,
            "turn_detection": None,
        }
        return {"type": "transcription", "audio": {"input": own}, "include": [], "hypotheses": self.hypotheses}


def require_small(text: str) -> None:
    """Raise `ServerError` for an event that would take a long time to parse. Only an event's audio may be large."""
    size = len(text)
    if size > MAX_EVENT and (audio := AUDIO.search(text)):
        size -= len(audio[0])
    if size > MAX_EVENT:
        problem = f"the event has {size} characters without its audio (at most {MAX_EVENT})"
        raise ServerError(413, problem, code="event_too_large")


def parse_event_id(fields: Mapping[str, Any]) -> str | None:
    """Return the id that the client chose for an event, or None. Raises `ServerError` if it is invalid."""
    event_id = fields.get("event_id")
    if event_id is not None and not (isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID):
        problem = f"must be text of at most {MAX_EVENT_ID} characters, not {short_repr(event_id)}"
        raise ServerError.of_field("event_id", problem, "invalid_value")
    return event_id


def parse_event(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's `type` and the values of its other fields, by option name. Raises `ServerError`."""
    event_type = fields.get("type")
    if not isinstance(event_type, str) or event_type not in EVENTS:
        hint = suggested_option(str(event_type), EVENTS)
        problem = f"{short_repr(event_type)} is not an event of a transcription; {hint}"
        raise ServerError.of_field("type", problem, "unknown_event")
    return parse_fields(fields, EVENTS[event_type])


def parse_audio(audio: str) -> bytes:
    """Decode the audio of an append event. Returns PCM samples. Raises `ServerError`."""
    try:
        pcm = base64.b64decode(audio, validate=True)
    except ValueError as error:
        raise ServerError.of_field("audio", f"is not base64 ({error})", "invalid_value") from None
    if len(pcm) % BYTES_PER_SAMPLE:
        problem = f"has {len(pcm)} bytes, but samples have two; send whole samples"
        raise ServerError.of_field("audio", problem, "invalid_value")
    return pcm


def updated(
    settings: Settings, values: Mapping[str, Any], names: ModelNames, audio: AudioConfig, limits: Limits
) -> Settings:
    """Return the settings after a session.update event. An empty string removes an earlier language or prompt.

    Args:
        settings: The settings before the event.
        values: The event's values for the fields in `SESSION`, keyed by option name.
        names: The names of the served model.
        audio: The model's audio config.
        limits: The limits of the server.

    Raises:
        ServerError: A value is invalid. `param` is the path of the field.
    """
    model = names.find(values.get("model"), FIELD_PATHS["model"])
    language = values.get("language", settings.language) or None
    prompt = values.get("initial_prompt", settings.prompt) or None
    try:
        language_code(audio, TranscriptionOptions(language=language))
    except InputError as error:
        raise ServerError.of(error, FIELD_PATHS) from None
    limits.check_length(FIELD_PATHS["initial_prompt"], prompt or "")
    return Settings(model, language, prompt, values.get("hypotheses", settings.hypotheses))
