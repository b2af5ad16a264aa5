"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..errors import InputError
from ..speech.audio_file import AudioBytes
from ..speech.mel import MelSpectrogram
from ..speech.transcription import Transcription
from .bodies import EventStream, cancel_on_disconnect, read_body
from .errors import ServerError
from .model_names import served_names
from .multipart import parse_multipart
from .recordings import ClientRecording, field_name
from .service import Service
from .transcription_format import (
    delta_event,
    done_event,
    parse_transcription_request,
    transcription_response,
)
from .uploads import Upload

UPLOAD_SECONDS = 120.0  # to receive a recording


async def transcriptions(request: Request) -> Response:
    return await transcribe(request, "transcribe")


async def translations(request: Request) -> Response:
    return await transcribe(request, "translate")


async def transcribe(request: Request, task: str) -> Response:
    service: Service = request.app.state.service
    audio = service.require_speech()
    limits = service.limits
    with ExitStack() as stack:
        upload = stack.enter_context(service.upload())
        receiving = read_body(request, limits.max_audio + limits.max_body, seconds=UPLOAD_SECONDS, count=upload.add)
        body = await upload.unless_failed(receiving)
        parts = parse_multipart(request.headers.get("content-type", ""), body)
        del body
        names = served_names(request.app.state)
        wanted = parse_transcription_request(parts, task, names, audio, service.options)
        if len(wanted.content) > limits.max_audio:
            raise ServerError(413, f"file: must have at most {limits.max_audio} bytes", "file", "body_too_large")
        if wanted.options.initial_prompt is not None:
            request.scope["prompts"] = [wanted.options.initial_prompt]

        address = request.client.host if request.client else ""
        source = AudioBytes(wanted.content, "file")
        opening = MelSpectrogram.opening(source, audio.num_mel_bins, limits.max_audio_seconds)
        with service.opening(upload):
            recording = await cancel_on_disconnect(
                request.receive, upload.unless_failed(opened(service, address, opening))
            )
        item = ClientRecording(recording, wanted.options, wanted.decoding, address)
        if not wanted.stream:
            result = await cancel_on_disconnect(request.receive, complete(service, item, upload))
            return transcription_response(wanted, result)
        events = stream(service, item, upload)
        await cancel_on_disconnect(request.receive, anext(events))  # an error here still sets the HTTP status
        return EventStream(events, limits.max_seconds, stack.pop_all())
    raise AssertionError  # the stack does not suppress errors


async def opened(service: Service, address: str, opening: Generator[None, None, MelSpectrogram]) -> MelSpectrogram:
    """Open a recording in other threads. Raises `ServerError`."""
    try:
        return await asyncio.wrap_future(service.reading.run(address, opening))
    except InputError as error:
        raise ServerError.of(error, field_name, "file") from None


async def complete(service: Service, item: ClientRecording, upload: Upload) -> Transcription:
    with service.request([item], upload) as client:
        await client.wait_until_finished()
        assert item.result is not None
        return item.result


async def stream(
    service: Service, item: ClientRecording, upload: Upload
) -> AsyncGenerator[dict[str, Any] | str | None]:
    """Yield None when the recording is queued, then the events of the stream.

    A `ServerError` before that first None is raised; a later one is the last event. None is also yielded after every
    15 seconds without an event, to keep the connection open.
    """
    with service.request([item], upload) as client:
        await client.wait_until_queued()
        yield None
        is_first = True
        try:
            async for found in client.progress(timeout=15.0):
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
