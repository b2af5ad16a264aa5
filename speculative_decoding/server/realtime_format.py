"""OpenAI's Realtime format: parses a client's events and the settings of its session."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..models.speech_languages import code_of_language
from ..models.whisper_tokens import AudioConfig
from ..sampling.options import short_repr, suggested_option
from ..sampling.values import Bool, Int, ListOf, Text
from ..speech.options import TranscriptionOptions
from ..speech.scheduler import language_code
from .errors import ServerError
from .fields import Anything, Field, option_names, parse_fields, parse_json
from .limits import MAX_LIVE_AUDIO, Limits
from .model_names import ModelNames
from .realtime_audio import BY_NAME, FORMATS, PCM, AudioFormat

MAX_EVENT = 1 << 16  # maximum number of characters without audio, because parsing a megabyte of JSON takes 0.1 s
AUDIO = re.compile(r'"audio"\s{0,9}:\s{0,9}"')
MAX_EVENT_ID = 512  # characters, as in OpenAI's API
FORMAT: Mapping[str, Field] = {
    "type": Field(Text([each.name for each in FORMATS]), option="audio_format"),
    "rate": Field(Int(1)),
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
NO_LOGPROBS = Field(only=[], refused="log-probabilities are not sent")
SESSION: Mapping[str, Field] = {
    "type": Field(only="transcription", refused="this server only transcribes", required='"transcription"'),
    "audio": Field({"input": Field(INPUT_FIELDS)}),
    "include": NO_LOGPROBS,
    "hypotheses": Field(Bool()),
}
OLDER_SESSION: Mapping[str, Field] = {  # as in the beta version of OpenAI's API
    "input_audio_format": Field(Text([each.older_name for each in FORMATS]), option="audio_format"),
    "input_audio_transcription": Field(TRANSCRIPTION_FIELDS),
    "input_audio_noise_reduction": INPUT_FIELDS["noise_reduction"],
    "turn_detection": INPUT_FIELDS["turn_detection"],
    "include": NO_LOGPROBS,
    "modalities": Field(ListOf(Text(("text", "audio"))), ignored=True),
    "hypotheses": Field(Bool()),
}
QUERY: Mapping[str, Field] = {  # query parameters of the URL
    "intent": Field(Text(("transcription",))),
    "model": Field(Anything()),
}
UPDATE, OLDER_UPDATE = "session.update", "transcription_session.update"
OF_ALL: Mapping[str, Field] = {"type": Field(), "event_id": Field()}
EVENTS: Mapping[str, Mapping[str, Field]] = {  # type of an event that clients may send -> its fields
    UPDATE: {**OF_ALL, "session": Field(SESSION, required="an object with the settings to change")},
    OLDER_UPDATE: {**OF_ALL, "session": Field(OLDER_SESSION, required="an object with the settings to change")},
    "input_audio_buffer.append": {**OF_ALL, "audio": Field(required="samples in base64")},
    "input_audio_buffer.commit": OF_ALL,
    "input_audio_buffer.clear": OF_ALL,
}
FIELD_PATHS = option_names(SESSION, "session.")
PATHS_IN_UPDATES = {UPDATE: FIELD_PATHS, OLDER_UPDATE: option_names(OLDER_SESSION, "session.")}


@dataclass(frozen=True)
class Settings:
    """The settings of a session. hypotheses: Whether deltas include text that may still change; not an OpenAI field."""

    model: str
    language: str | None = None
    prompt: str | None = None
    hypotheses: bool = False
    audio_format: AudioFormat = PCM

    @property
    def options(self) -> dict[str, Any]:
        """The transcription options; see `TranscriptionOptions`."""
        chosen = {"language": self.language, "initial_prompt": self.prompt}
        return {name: value for name, value in chosen.items() if value is not None}

    @property
    def content(self) -> dict[str, Any]:
        own = {
            "format": self.audio_format.content,
            "noise_reduction": None,
            "transcription": self._transcription,
            "turn_detection": None,
        }
        return {"type": "transcription", "audio": {"input": own}, "include": [], "hypotheses": self.hypotheses}

    @property
    def older_content(self) -> dict[str, Any]:
        """The session as in the beta version of OpenAI's API."""
        return {
            "input_audio_format": self.audio_format.older_name,
            "input_audio_noise_reduction": None,
            "input_audio_transcription": self._transcription,
            "turn_detection": None,
            "include": [],
            "hypotheses": self.hypotheses,
        }

    @property
    def _transcription(self) -> dict[str, Any]:
        return {"model": self.model, "language": self.language, "prompt": self.prompt}


def parse_object(text: str) -> dict[str, Any]:
    """Parse the JSON of an event. Raises `ServerError`, also for an event that would take a long time to parse.

    Only the audio of an event may be large. It is cut out before the rest is parsed, because the parser and the checks
    of its result would take 0.2 s for `MAX_LIVE_AUDIO`.
    """
    if len(text) <= MAX_EVENT:
        return parse_json(text, "event")
    match = AUDIO.search(text)
    start = end = 0 if match is None else match.end()
    if match is not None:
        end = text.find('"', start)
    size = len(text) - (end - start)
    if end < start or size > MAX_EVENT:
        problem = f"the event has {size} characters without its audio (at most {MAX_EVENT})"
        raise ServerError(413, problem, code="event_too_large")
    fields = parse_json(text[:start] + text[end:], "event")
    if fields.get("audio") != "":  # the field that was cut out is within another one
        raise ServerError(413, "only the audio of an event may be large", code="event_too_large")
    audio = text[start:end]
    if "\\" in audio:  # some encoders escape "/" or "+"
        audio = parse_json(f'{{"audio":"{audio}"}}', "event")["audio"]
    return {**fields, "audio": audio}


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


def parse_audio(audio: str, audio_format: AudioFormat) -> bytes:
    """Decode the base64 of an append event. Returns whole samples in the audio format. Raises `ServerError`."""
    try:
        data = base64.b64decode(audio, validate=True)
    except ValueError as error:
        raise ServerError.of_field("audio", f"is not base64 ({error})", "invalid_value") from None
    if len(data) > MAX_LIVE_AUDIO:
        problem = f"has {len(data)} bytes (at most {MAX_LIVE_AUDIO}); send it in several events"
        raise ServerError.of_field("audio", problem, "invalid_value")
    if len(data) % audio_format.bytes_per_sample:
        problem = f"has {len(data)} bytes, but samples have {audio_format.bytes_per_sample}; send whole samples"
        raise ServerError.of_field("audio", problem, "invalid_value")
    return data


def updated(
    settings: Settings, values: Mapping[str, Any], names: ModelNames, audio: AudioConfig, limits: Limits
) -> Settings:
    """Return the settings after an `UPDATE` or `OLDER_UPDATE`. An empty string removes an earlier language or prompt.

    Args:
        settings: The settings before the event.
        values: The event's values, keyed by option name.
        names: The names of the served model.
        audio: The model's audio config.
        limits: The limits of the server.

    Raises:
        ServerError: A value is invalid. `param` is the path of the field.
    """
    paths = PATHS_IN_UPDATES[values["type"]]
    model = names.find(values.get("model"), paths["model"])
    audio_format = BY_NAME[values.get("audio_format", settings.audio_format.name)]
    if values.get("rate", audio_format.rate) != audio_format.rate:
        problem = f"must be {audio_format.rate} for {audio_format.name}, not {values['rate']}; resample the audio"
        raise ServerError.of_field(paths["rate"], problem, "unsupported_value")
    language = values.get("language", settings.language) or None
    prompt = values.get("initial_prompt", settings.prompt) or None
    try:
        language_code(audio, TranscriptionOptions(language=language))
    except InputError as error:
        raise ServerError.of(error, paths) from None
    limits.check_length(paths["initial_prompt"], prompt or "")
    code = None if language is None else code_of_language(language)
    return Settings(model, code, prompt, values.get("hypotheses", settings.hypotheses), audio_format)
