"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..errors import InputError
from ..speech.audio_file import AudioBytes, Samples
from ..speech.mel import MelSpectrogram
from ..speech.transcription import Transcription
from .bodies import EventStream, cancel_on_disconnect, read_body
from .errors import ServerError
from .multipart import parse_multipart
from .recordings import ServedRecording
from .service import Service
from .transcription_format import (
    delta_event,
    done_event,
    parse_transcription_request,
    transcription_response,
)

OPENING = ThreadPoolExecutor(2, "audio")  # decodes files once, for their length and loudness
UPLOAD_SECONDS = 120.0  # to receive a recording


class Upload:
    """A file that a client has sent, as an `AudioSource` that stops when it is no longer wanted."""

    name = "file"

    def __init__(self, content: bytes) -> None:
        self._audio = AudioBytes(content, self.name)
        self.is_wanted = True

    def blocks(self) -> Iterator[Samples]:
        for block in self._audio.blocks():
            if not self.is_wanted:
                raise InputError("file: no longer wanted")
            yield block


async def transcriptions(request: Request) -> Response:
    return await transcribe(request, "transcribe")


async def translations(request: Request) -> Response:
    return await transcribe(request, "translate")


async def transcribe(request: Request, task: str) -> Response:
    service: Service = request.app.state.service
    audio = service.require_speech()
    service.require_room(1)
    limits = service.limits
    with ExitStack() as stack:
        count = stack.enter_context(service.upload())
        body = await read_body(request, limits.max_audio + limits.max_body, seconds=UPLOAD_SECONDS, count=count)
        parts = parse_multipart(request.headers.get("content-type", ""), body)
        del body
        names = request.app.state.settings.names
        wanted = parse_transcription_request(parts, task, names, audio, service.options)
        if len(wanted.content) > limits.max_audio:
            raise ServerError(413, f"file must have at most {limits.max_audio} bytes", "file", "body_too_large")
        if "initial_prompt" in wanted.options:
            request.scope["prompts"] = [wanted.options["initial_prompt"]]

        opening = open_recording(wanted.content, audio.num_mel_bins, limits.max_audio_seconds)
        try:
            recording = await cancel_on_disconnect(request.receive, opening, limits.max_seconds)
        except TimeoutError:
            raise ServerError(504, f"file was not decoded within {limits.max_seconds:g} s", code="timeout") from None
        item = ServedRecording(recording, wanted.options)
        if not wanted.stream:
            result = await cancel_on_disconnect(request.receive, complete(service, item))
            return transcription_response(wanted, result)
        events = stream(service, item)
        await cancel_on_disconnect(request.receive, anext(events))  # an error here still sets the HTTP status
        return EventStream(events, limits.max_seconds, stack.pop_all())
    raise AssertionError  # the stack does not suppress errors


async def open_recording(content: bytes, num_mel_bins: int, max_seconds: float) -> MelSpectrogram:
    """Decode a file once, in another thread. Raises `ServerError`."""
    upload = Upload(content)
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(OPENING, MelSpectrogram, upload, num_mel_bins, max_seconds)
    except InputError as error:
        raise ServerError.of(error) from None
    except asyncio.CancelledError:
        upload.is_wanted = False
        raise


async def complete(service: Service, item: ServedRecording) -> Transcription:
    with service.request([item]) as client:
        await client.wait_until_finished()
        assert item.result is not None
        return item.result


async def stream(service: Service, item: ServedRecording) -> AsyncGenerator[dict[str, Any] | str | None]:
    """Yield None when the recording is queued, then the events of the stream.

    A `ServerError` before that first None is raised; a later one is the last event. None is also yielded after every
    15 seconds without an event, to keep the connection open.
    """
    with service.request([item]) as client:
        await client.wait_until_queued()
        yield None
        is_first = True
        try:
            async for found in client.updates(timeout=15.0):
                if found is None:
                    yield None
                elif segments := found[1].segments:
                    yield delta_event(segments, is_first=is_first)
                    is_first = False
        except ServerError as error:
            service.metrics.errors.labels(error.code or error.status).inc()
            yield error.content
            return
        assert item.result is not None
        yield done_event(item.result)
        yield "[DONE]"
