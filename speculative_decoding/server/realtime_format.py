"""OpenAI's format of live speech: parses the events of a client, and its settings."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from ..errors import InputError
from ..models.whisper_tokens import AudioConfig
from ..sampling.options import short_repr, validate
from ..sampling.values import Bool, Text
from ..speech.options import TranscriptionOptions
from ..speech.scheduler import language_code
from .errors import ServerError
from .limits import Limits
from .model_names import ModelNames

RATE = 24_000  # Hz, the only one of the API
BYTES_PER_SAMPLE = 2
MAX_EVENT_ID = 512  # characters, as in OpenAI's API
INPUT = "session.audio.input"
TRANSCRIPTION = f"{INPUT}.transcription"
FIELDS = {  # of each event that a client may send, in addition to `type` and `event_id`
    "session.update": ("session",),
    "input_audio_buffer.append": ("audio",),
    "input_audio_buffer.commit": (),
    "input_audio_buffer.clear": (),
}
# OpenAI's fields of a session that are accepted only if they are null, and the reason
UNSUPPORTED = {
    f"{INPUT}.turn_detection": "the server does not detect turns; send input_audio_buffer.commit where one ends",
    f"{INPUT}.noise_reduction": "Whisper models are trained with noise",
    f"{TRANSCRIPTION}.delay": "text is sent as soon as two hypotheses agree on it",
    f"{TRANSCRIPTION}.keywords": "put them into the prompt",
    f"{TRANSCRIPTION}.languages": "name one language, or none to detect it",
}
FIELD_PATHS = {"language": f"{TRANSCRIPTION}.language", "initial_prompt": f"{TRANSCRIPTION}.prompt"}


@dataclass(frozen=True)
class Settings:
    """What a client may set. hypotheses: not an OpenAI field; deltas also have the text that may still change."""

    model: str
    language: str | None = None
    prompt: str | None = None
    hypotheses: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """How to transcribe; see `TranscriptionOptions`."""
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


def parse_event_id(fields: Mapping[str, Any]) -> str | None:
    """Return the client's name for an event, if it has one. Raises `ServerError`."""
    event_id = fields.get("event_id")
    if event_id is not None and not (isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID):
        message = f"event_id: must be text of at most {MAX_EVENT_ID} characters, not {short_repr(event_id)}"
        raise ServerError(400, message, "event_id", "invalid_value")
    return event_id


def parse_type(fields: Mapping[str, Any]) -> str:
    """Return the type of an event, after checking which fields it has. Raises `ServerError`."""
    kind = fields.get("type")
    if not isinstance(kind, str) or kind not in FIELDS:
        similar = get_close_matches(kind, FIELDS, 1) if isinstance(kind, str) else []
        hint = f"did you mean {similar[0]}?" if similar else f"there are {', '.join(FIELDS)}"
        message = f"type: {short_repr(kind)} is not an event of a transcription; {hint}"
        raise ServerError(400, message, "type", "unknown_event")
    for name in FIELDS[kind]:
        if name not in fields:
            raise ServerError(400, f"{name}: is missing", name, "missing_field")
    require_known(fields, ("type", "event_id", *FIELDS[kind]))
    return kind


def require_known(fields: Collection[str], known: Sequence[str], path: str = "") -> None:
    """Raise `ServerError` for a field that is not `known`. path: of the object, with a dot at its end."""
    for name in fields:
        if name not in known:
            raise ServerError.unknown_field(f"{path}{name}", [f"{path}{each}" for each in known])


def parse_audio(audio: Any) -> bytes:
    """Return the samples of an append. Raises `ServerError`."""
    try:
        pcm = base64.b64decode(validate("audio", Text(may_be_empty=True), audio), validate=True)
    except InputError as error:
        raise ServerError.of(error) from None
    except ValueError as error:
        raise ServerError(400, f"audio: is not base64 ({error})", "audio", "invalid_value") from None
    if len(pcm) % BYTES_PER_SAMPLE:
        message = f"audio: has {len(pcm)} bytes, but samples have two; send whole samples"
        raise ServerError(400, message, "audio", "invalid_value")
    return pcm


def updated(settings: Settings, session: Any, names: ModelNames, audio: AudioConfig, limits: Limits) -> Settings:
    """Return settings with the fields of an update. Null counts as missing.

    Args:
        settings: The settings before it.
        session: The `session` of the client's event.
        names: The names of the served model.
        audio: The model's audio config.
        limits: The limits of the server.

    Raises:
        ServerError: A field cannot be used. Its `param` is the path of the field.
    """
    fields = object_fields("session", session, ("type", "audio", "include", "hypotheses"))
    require_value("session.type", fields.get("type"), "transcription", "this server only transcribes")
    require_value("session.include", fields.get("include", []), [], "log-probabilities are not sent")
    own = object_fields("session.audio", fields.get("audio"), ("input",)).get("input")
    own = object_fields(INPUT, own, ("format", "transcription", "turn_detection", "noise_reduction"))
    form = object_fields(f"{INPUT}.format", own.get("format"), ("type", "rate"))
    require_value(f"{INPUT}.format.type", form.get("type", "audio/pcm"), "audio/pcm", "convert the audio")
    require_value(f"{INPUT}.format.rate", form.get("rate", RATE), RATE, "resample the audio")
    known = ("model", "language", "prompt", "delay", "keywords", "languages")
    chosen = object_fields(TRANSCRIPTION, own.get("transcription"), known)
    require_supported([f"{INPUT}.{name}" for name in own] + [f"{TRANSCRIPTION}.{name}" for name in chosen])
    names.require(chosen.get("model", names.id), f"{TRANSCRIPTION}.model")
    try:
        language, prompt = (
            validate(f"{TRANSCRIPTION}.{name}", Text(may_be_empty=True), chosen.get(name, before or "")) or None
            for name, before in (("language", settings.language), ("prompt", settings.prompt))
        )
        hypotheses = validate("session.hypotheses", Bool(), fields.get("hypotheses", settings.hypotheses))
        language_code(audio, TranscriptionOptions(language=language))
    except InputError as error:
        raise ServerError.of(error, field_path) from None
    limits.check_length(f"{TRANSCRIPTION}.prompt", prompt or "")
    return replace(settings, language=language, prompt=prompt, hypotheses=hypotheses)


def object_fields(path: str, value: Any, known: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an object that are not null. Raises `ServerError`."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ServerError(400, f"{path}: must be an object, not {short_repr(value)}", path, "invalid_value")
    require_known(value, known, f"{path}.")
    return {name: each for name, each in value.items() if each is not None}


def require_supported(paths: Iterable[str]) -> None:
    """Raise `ServerError` for a field of the API that this server does not have."""
    for path in paths:
        if (reason := UNSUPPORTED.get(path)) is not None:
            raise ServerError(400, f"{path}: is not supported: {reason}", path, "unsupported_value")


def require_value(path: str, value: Any, expected: Any, way_out: str) -> None:
    """Raise `ServerError` for another value than the only one that is possible."""
    if value != expected or isinstance(value, bool):
        message = f"{path}: must be {json.dumps(expected)}, not {short_repr(value)}; {way_out}"
        raise ServerError(400, message, path, "invalid_value")


def field_path(option: str) -> str:
    """Return the API's field for a transcription option."""
    return FIELD_PATHS.get(option, option)
