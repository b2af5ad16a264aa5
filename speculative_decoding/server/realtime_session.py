"""A session of OpenAI's Realtime API: handles the client's events and creates the server's events. Does no I/O."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..models.whisper_tokens import AudioConfig
from ..speech.live.update import LiveUpdate, Piece
from .errors import ServerError
from .limits import Limits
from .model_names import ModelNames
from .realtime_audio import AudioFormat
from .realtime_format import (
    OLDER_UPDATE,
    PATHS_IN_UPDATES,
    Settings,
    parse_audio,
    parse_event,
    parse_event_id,
    parse_object,
    updated,
)

MIN_SECONDS = 0.1  # minimum duration of the audio in a commit

Event = dict[str, Any]


class Streams(Protocol):
    """Transcribes a connection's speech. Passes text to the session's `on_update`, and errors to its `fail`."""

    def open(self, options: Mapping[str, Any], audio_format: AudioFormat) -> Any:
        """Return a new stream. Its method `finish` makes its text final. Raises `ServerError` if no slot is free."""

    def append(self, stream: Any, audio: bytes) -> None:
        """Append samples to a stream. Raises `ServerError` if too much speech is waiting to be decoded."""

    def cancel(self, stream: Any) -> None:
        """Cancel a stream, even if it has already ended."""


@dataclass(eq=False)
class Item:
    """An item of the conversation: the speech between two commits, and the part of its text that is final so far."""

    id: str
    stream: Any
    hypotheses: bool
    audio_format: AudioFormat
    num_bytes: int = 0
    texts: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.audio_format.seconds(self.num_bytes)


class RealtimeSession:
    """The session of one connection.

    An item begins with the first audio and ends with a commit. If an item cannot be transcribed, all audio up to the
    next commit or clear is dropped.

    Args:
        streams: Transcribes the items.
        names: The names of the served model.
        audio: The model's audio config.
        limits: The limits of the server.
        send: Sends an event to the client without blocking.
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
        self._items: dict[Any, Item] = {}  # stream -> its item, until the item is completed
        self._current: Item | None = None  # the item that is not committed yet
        self._refused: ServerError | None = None  # the error for which the audio since the last commit is dropped
        self._previous: str | None = None  # id of the last committed item

    def begin(self) -> None:
        self._send("session.created", session=self._content)

    def receive(self, text: str) -> None:
        """Handle an event from the client. Invalid events are answered with error events."""
        event_id = None
        try:
            fields = parse_object(text)
            event_id = parse_event_id(fields)
            values = parse_event(fields)
            match values["type"]:
                case "input_audio_buffer.append":
                    self._append(values["audio"])
                case "input_audio_buffer.commit":
                    self._commit()
                case "input_audio_buffer.clear":
                    self._clear()
                case _:
                    self._update(values)
        except ServerError as error:
            self.refuse(error, event_id)

    def refuse(self, error: ServerError, event_id: str | None = None) -> None:
        """Send an error event. event_id: The id of the client's event that caused the error."""
        self._send("error", error={**error.content["error"], "event_id": event_id})

    def on_update(self, stream: Any, update: LiveUpdate) -> None:
        """Send the text of an update. Ignores cancelled streams."""
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
        """End an item with an error. Ignores cancelled streams."""
        if (item := self._items.pop(stream, None)) is not None:
            if item is self._current:
                self._current, self._refused = None, error
            self._send_transcription(item, "failed", error=error.content["error"])

    def finish(self) -> None:
        """Commit the current item, because the server is stopping. An item that is too short is dropped."""
        if self._current is not None and self._current.seconds >= MIN_SECONDS:
            self._commit()
        else:
            self.drop()

    @property
    def has_pending_text(self) -> bool:
        """Whether committed speech has been transcribed only in part."""
        return any(item is not self._current for item in self._items.values())

    def _update(self, values: Mapping[str, Any]) -> None:
        event_type = values["type"]
        settings = updated(self._settings, values, self._names, self._audio, self._limits)
        if self._current is not None and settings.audio_format is not self._current.audio_format:
            problem = "must not change while the buffer has audio; send a commit or clear first"
            raise ServerError.of_field(PATHS_IN_UPDATES[event_type]["audio_format"], problem, "invalid_value")
        self._settings = settings
        self._send(f"{event_type}d", session=self._older_content if event_type == OLDER_UPDATE else self._content)

    def _append(self, base64: str) -> None:
        settings = self._settings
        audio = parse_audio(base64, settings.audio_format)
        if self._refused is not None or not audio:
            return
        try:
            if self._current is None:
                stream = self._streams.open(settings.options, settings.audio_format)
                new = Item(new_id("item"), stream, settings.hypotheses, settings.audio_format)
                self._current = self._items[stream] = new
            self._streams.append(self._current.stream, audio)
            self._current.num_bytes += len(audio)
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
        item.stream.finish()
        self._send("input_audio_buffer.committed", item_id=item.id, previous_item_id=self._previous)
        for state in ("added", "done"):
            self._send(f"conversation.item.{state}", item=message_item(item), previous_item_id=self._previous)
        self._previous = item.id

    def _clear(self) -> None:
        self._refused = None
        self.drop()
        self._send("input_audio_buffer.cleared")

    def drop(self) -> None:
        """Drop the current item."""
        if self._current is not None:
            del self._items[self._current.stream]
            self._streams.cancel(self._current.stream)
            self._current = None

    @property
    def _content(self) -> dict[str, Any]:
        return {"id": self._id, "object": "realtime.transcription_session", **self._settings.content}

    @property
    def _older_content(self) -> dict[str, Any]:
        return {"id": self._id, "object": "realtime.transcription_session", **self._settings.older_content}

    def _send_transcription(self, item: Item, state: str, **fields: Any) -> None:
        event_type = f"conversation.item.input_audio_transcription.{state}"
        self._send(event_type, item_id=item.id, content_index=0, **fields)

    def _send(self, event_type: str, **fields: Any) -> None:
        self._send_event({"type": event_type, "event_id": new_id("event"), **fields})


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def message_item(item: Item) -> dict[str, Any]:
    content = [{"type": "input_audio", "transcript": None}]
    fixed = {"object": "realtime.item", "type": "message", "status": "completed", "role": "user"}
    return {"id": item.id, **fixed, "content": content}


def without_indent(pieces: Collection[Piece]) -> list[Piece]:
    """Remove whitespace before the first word."""
    found: list[Piece] = []
    for piece in pieces:
        text = piece.text if found else piece.text.lstrip()
        if text:
            found.append(piece._replace(text=text))
    return found
