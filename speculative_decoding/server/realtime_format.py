"""OpenAI's Realtime API for transcriptions: what a client's events do, and which events answer them. Does no I/O."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Protocol

from ..checkpoints.json_text import is_json_value, parse_json_object
from ..errors import InputError
from ..models.whisper_tokens import AudioConfig
from ..sampling.options import short_repr, validate
from ..sampling.values import Bool, Text
from ..speech.live.update import LiveUpdate, Piece
from ..speech.options import TranscriptionOptions
from ..speech.scheduler import language_code
from .errors import ServerError
from .limits import Limits
from .model_names import ModelNames

RATE = 24_000  # Hz, the only one of the API
BYTES_PER_SAMPLE = 2
MIN_SECONDS = 0.1  # of audio, for a commit
MAX_EVENT_ID = 512  # characters, as in OpenAI's API
INPUT = "session.audio.input"
TRANSCRIPTION = f"{INPUT}.transcription"
FIELDS = {  # of the events that a client may send, beside `type` and `event_id`
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

Event = dict[str, Any]


class Streams(Protocol):
    """Transcribes the speech of a connection. It later reports to `heard` and `fail` of the session."""

    def open(self, options: Mapping[str, Any]) -> Any:
        """Return a new stream. Raises `ServerError` if there is no slot."""

    def append(self, stream: Any, pcm: bytes) -> None:
        """Append samples to a stream. Raises `ServerError` if too much speech is waiting."""

    def finish(self, stream: Any) -> None:
        """Let the text of a stream become final."""

    def cancel(self, stream: Any) -> None:
        """Drop a stream, which may have ended already."""


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


@dataclass(eq=False)
class Item:
    """An item of the conversation: speech between two commits, and its final text so far."""

    id: str
    stream: Any
    hypotheses: bool
    num_bytes: int = 0
    texts: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.num_bytes / (BYTES_PER_SAMPLE * RATE)


class RealtimeSession:
    """The session of one connection.

    An item begins with the first audio and ends with a commit. If it cannot be transcribed, its audio is dropped until
    the next commit or clear.

    Args:
        streams: Transcribes items.
        names: The names of the served model.
        audio: The model's audio config.
        limits: The limits of the server.
        send: Sends an event to the client. It must not block.
    """

    def __init__(
        self, streams: Streams, names: ModelNames, audio: AudioConfig, limits: Limits, send: Callable[[Event], None]
    ) -> None:
        self._streams = streams
        self._names = names
        self._audio = audio
        self._limits = limits
        self._send_event = send
        self._id = new_id("sess")
        self._settings = Settings(names.id)
        self._items: dict[Any, Item] = {}  # by stream, until they are completed
        self._current: Item | None = None  # the item that is not committed
        self._refused: ServerError | None = None  # why the audio since the last commit is dropped
        self._previous: str | None = None  # the last item that was committed

    def begin(self) -> None:
        self._send("session.created", session=self._content)

    def receive(self, text: str) -> None:
        """Handle an event of the client. It is answered with an error event if it cannot be used."""
        event_id = None
        try:
            fields = parse_json(text)
            event_id = parse_event_id(fields)
            match parse_type(fields):
                case "session.update":
                    self._update(fields["session"])
                case "input_audio_buffer.append":
                    self._append(fields["audio"])
                case "input_audio_buffer.commit":
                    self._commit()
                case "input_audio_buffer.clear":
                    self._clear()
        except ServerError as error:
            self.refuse(error, event_id)

    def refuse(self, error: ServerError, event_id: str | None = None) -> None:
        """Send an error event. event_id: of the client's event that caused it."""
        self._send("error", error={**error.content["error"], "event_id": event_id})

    def heard(self, stream: Any, update: LiveUpdate) -> None:
        """Send the text of a hypothesis. A stream that was dropped is ignored."""
        if (item := self._items.get(stream)) is None:
            return
        is_first = not item.texts
        final = update.final.lstrip() if is_first else update.final
        more = {}
        if item.hypotheses:
            pieces = without_indent(update.pieces) if is_first else update.pieces
            pending = update.pending.lstrip() if is_first and not final else update.pending
            more = {"pending": pending, "pieces": [piece._asdict() for piece in pieces]}
        if final:
            item.texts.append(final)
        if final or more:
            self._send_transcription(item, "delta", delta=final, **more)
        if update.is_last:
            del self._items[stream]
            usage = {"type": "duration", "seconds": item.seconds}
            self._send_transcription(item, "completed", transcript="".join(item.texts), usage=usage)

    def fail(self, stream: Any, error: ServerError) -> None:
        """End an item with an error. A stream that was dropped is ignored."""
        if (item := self._items.pop(stream, None)) is not None:
            if item is self._current:
                self._current, self._refused = None, error
            self._send_transcription(item, "failed", error=error.content["error"])

    def finish(self) -> None:
        """End the current item as a commit does, because the server stops."""
        if self._current is not None and self._current.seconds >= MIN_SECONDS:
            self._commit()
        else:
            self._drop()

    def _update(self, session: Any) -> None:
        self._settings = updated(self._settings, session, self._names, self._audio, self._limits)
        self._send("session.updated", session=self._content)

    def _append(self, audio: Any) -> None:
        pcm = parse_audio(audio)
        if self._refused is not None or not pcm:
            return
        try:
            if self._current is None:
                stream = self._streams.open(self._settings.options)
                self._current = self._items[stream] = Item(new_id("item"), stream, self._settings.hypotheses)
            self._streams.append(self._current.stream, pcm)
            self._current.num_bytes += len(pcm)
        except ServerError as error:
            self._refused = error
            if (item := self._current) is not None:
                self._streams.cancel(item.stream)
                self.fail(item.stream, error)
            raise

    def _commit(self) -> None:
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused
        seconds = 0.0 if self._current is None else self._current.seconds
        if self._current is None or seconds < MIN_SECONDS:
            message = f"the buffer has {1000 * seconds:.2f} ms of audio (expected at least 100 ms); append more"
            raise ServerError(400, message, code="input_audio_buffer_commit_empty")
        item, self._current = self._current, None
        self._streams.finish(item.stream)
        self._send("input_audio_buffer.committed", item_id=item.id, previous_item_id=self._previous)
        for kind in ("added", "done"):
            self._send(f"conversation.item.{kind}", item=message_item(item), previous_item_id=self._previous)
        self._previous = item.id

    def _clear(self) -> None:
        self._refused = None
        self._drop()
        self._send("input_audio_buffer.cleared")

    def _drop(self) -> None:
        if self._current is not None:
            del self._items[self._current.stream]
            self._streams.cancel(self._current.stream)
            self._current = None

    @property
    def _content(self) -> dict[str, Any]:
        return {"id": self._id, "object": "realtime.transcription_session", **self._settings.content}

    def _send_transcription(self, item: Item, kind: str, **fields: Any) -> None:
        name = f"conversation.item.input_audio_transcription.{kind}"
        self._send(name, item_id=item.id, content_index=0, **fields)

    def _send(self, kind: str, **fields: Any) -> None:
        self._send_event({"type": kind, "event_id": new_id("event"), **fields})


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def message_item(item: Item) -> dict[str, Any]:
    content = [{"type": "input_audio", "transcript": None}]
    fixed = {"object": "realtime.item", "type": "message", "status": "completed", "role": "user"}
    return {"id": item.id, **fixed, "content": content}


def without_indent(pieces: Collection[Piece]) -> list[Piece]:
    """Remove the space before the first word."""
    found: list[Piece] = []
    for piece in pieces:
        text = piece.text if found else piece.text.lstrip()
        if text:
            found.append(piece._replace(text=text))
    return found


def parse_json(text: str) -> dict[str, Any]:
    """Parse an event. Raises `ServerError`."""
    try:
        fields = parse_json_object(text)
    except InputError as error:
        raise ServerError(400, f"invalid event: {error}", code="invalid_json") from None
    if not is_json_value(fields):
        raise ServerError(400, "invalid event: a lone surrogate, NaN or Infinity is not JSON", code="invalid_json")
    return fields


def parse_event_id(fields: Mapping[str, Any]) -> str | None:
    """Return the client's name for an event, if it has one. Raises `ServerError`."""
    event_id = fields.get("event_id")
    if event_id is not None and not (isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID):
        message = f"event_id: must be text of at most {MAX_EVENT_ID} characters, not {short_repr(event_id)}"
        raise ServerError(400, message, "event_id", "invalid_value")
    return event_id


def parse_type(fields: Mapping[str, Any]) -> str:
    """Return the type of an event that has all its fields, and no others. Raises `ServerError`."""
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
    for path, given in ((INPUT, own), (TRANSCRIPTION, chosen)):
        for name in given:
            if (reason := UNSUPPORTED.get(f"{path}.{name}")) is not None:
                message = f"{path}.{name}: is not supported: {reason}"
                raise ServerError(400, message, f"{path}.{name}", "unsupported_value")
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


def require_value(path: str, value: Any, expected: Any, way_out: str) -> None:
    """Raise `ServerError` for another value than the only one that is possible."""
    if value != expected or isinstance(value, bool):
        message = f"{path}: must be {json.dumps(expected)}, not {short_repr(value)}; {way_out}"
        raise ServerError(400, message, path, "invalid_value")


def field_path(option: str) -> str:
    """Return the API's field for a transcription option."""
    return FIELD_PATHS.get(option, option)
