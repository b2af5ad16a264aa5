"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..errors import InputError
from ..models.whisper_tokens import AudioConfig
from ..speech.api import mel_bins
from ..speech.audio_file import AudioFile
from ..speech.recording import Recording, frame_bytes_per_second, opening
from ..speech.speech_text import SpeechText
from .bodies import EventStream, cancel_on_disconnect, client_address, read_body
from .client_request import Upload
from .errors import ServerError
from .model_names import served_names
from .multipart import parse_multipart
from .service import Service
from .streams import stream
from .transcription_format import (
    FIELD_NAMES,
    ClientRecording,
    TranscriptionRequest,
    delta_event,
    done_events,
    parse_transcription_request,
    transcription_response,
)

UPLOAD_SECONDS = 120.0  # time limit for receiving a recording


async def transcribe(request: Request, task: str) -> Response:
    """Handle a request for a transcription or translation. task: One of `TASKS`."""
    service: Service = request.app.state.service
    audio = service.require_speech()
    limits = service.limits
    bins = mel_bins(service.session)
    largest = limits.max_audio + int(limits.max_audio_seconds * frame_bytes_per_second(bins))
    with ExitStack() as stack:
        upload = stack.enter_context(service.upload(largest))
        wanted = await received(request, task, audio, upload)
        size = upload.size
        address = client_address(request)
        source, frames = AudioFile(wanted.content, "file", wanted.options.audio_track), CountedBytes(upload.add)
        steps = opening(source, bins, limits.max_audio_seconds, frames, wanted.options.voice)
        with service.opening(upload):
            reading = upload.unless_failed(opened(service, address, steps))
            recording = await cancel_on_disconnect(request.receive, reading)
        del source, frames, steps, reading
        wanted = replace(wanted, content=b"")
        upload.size -= size  # from here on, only the frames remain in memory
        item = ClientRecording(recording, wanted.options, wanted.decoding, address)
        if not wanted.stream:
            await cancel_on_disconnect(request.receive, service.decode([item], upload))
            assert item.result is not None
            return transcription_response(wanted, item.result)
        text_tokens = SpeechText(service.session.tokenizer, audio) if wanted.rounds else None
        event_of = partial(delta_event, text_tokens=text_tokens)
        events = stream(service, [item], event_of, lambda: done_events(item, wanted.rounds), upload)
        await cancel_on_disconnect(request.receive, anext(events))  # an error up to here sets the HTTP status
        return EventStream(events, limits.max_seconds, stack.pop_all())


async def received(request: Request, task: str, audio: AudioConfig, upload: Upload) -> TranscriptionRequest:
    """Receive and parse the form of a request. Raises `ServerError`."""
    service: Service = request.app.state.service
    limits = service.limits
    receiving = read_body(request, limits.max_audio + limits.max_body, seconds=UPLOAD_SECONDS, count=upload.add)
    body = await upload.unless_failed(receiving)
    parts = parse_multipart(request.headers.get("content-type", ""), body)
    if len(body) - sum(len(part.content) for part in parts if part.is_file) > limits.max_body:
        message = f"a request must have at most {limits.max_body} bytes without its recording"
        raise ServerError(413, message, code="body_too_large")
    del body
    names = served_names(request.app.state)
    wanted = parse_transcription_request(parts, task, names, audio, service.options)
    if len(wanted.content) > limits.max_audio:
        raise ServerError.of_field("file", f"must have at most {limits.max_audio} bytes", "body_too_large", 413)
    if wanted.decoding.draft_text != service.options.draft_text:
        limits.check_draft_texts("draft_text", wanted.decoding.draft_text)
    if wanted.options.initial_prompt is not None:
        request.scope["prompts"] = [wanted.options.initial_prompt]
    return wanted


class CountedBytes(BytesIO):
    """A buffer for frames in memory. count: Called before each write with the number of bytes. May raise an error."""

    def __init__(self, count: Callable[[int], None]) -> None:
        super().__init__()
        self._count = count

    def write(self, content: Any) -> int:
        self._count(len(content))
        return super().write(content)


async def opened(service: Service, address: str, steps: Generator[None, None, Recording]) -> Recording:
    """Open a recording in the reading threads. Raises `ServerError`."""
    try:
        return await asyncio.wrap_future(service.reading.run(address, steps))
    except InputError as error:
        raise ServerError.of(error, FIELD_NAMES, "file") from None
