"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from .bodies import EventStream, read_object, unless_gone
from .completion_format import CompletionRequest, CompletionResponse
from .errors import ServerError
from .service import Service

KEEP_ALIVE_SECONDS = 15.0  # between comments in a stream to which nothing else is to be said


async def completions(request: HTTPRequest) -> Response:
    service: Service = request.app.state.service
    service.require_ready()
    asked = CompletionRequest.of(
        await read_object(request, service.limits.max_body), service, request.app.state.settings.model
    )
    request.scope["prompts"] = [prompt for prompt, _ in asked.prompts]
    shape = CompletionResponse(request.app.state.settings.model, asked)
    if not asked.stream:
        return JSONResponse(await unless_gone(request.receive, whole(service, asked, shape)))
    events = chunks(service, asked, shape)
    await unless_gone(request.receive, anext(events))  # until it is known that the stream will begin
    return EventStream(events, service.limits.max_seconds)


async def whole(service: Service, asked: CompletionRequest, shape: CompletionResponse) -> dict[str, Any]:
    with service.request(asked.prompts) as decoding:
        await decoding.started()
        async for _ in decoding.steps():
            pass
        choices = [shape.choice(row, row.text, row.finish_reason, shape.logprobs(row, 0)) for row in decoding.rows]
        return shape.answer(choices) | {"usage": shape.usage(decoding.rows)}


async def chunks(
    service: Service, asked: CompletionRequest, shape: CompletionResponse
) -> AsyncGenerator[dict[str, Any] | str | None]:
    """The first is None, as soon as all prompts are known to be fit; before it `ServerError` is raised for one that is
    not, and behind it given out.
    """
    with service.request(asked.prompts, wants_rejected=asked.rounds) as decoding:
        await decoding.started()
        yield None
        try:
            async for found in decoding.steps(KEEP_ALIVE_SECONDS):
                chunk = None if found is None else shape.chunk(*found)
                if found is None or chunk is not None:
                    yield chunk
        except ServerError as error:
            service.metrics.error(error.code or str(error.status))
            yield error.content
            return
        if asked.include_usage:
            yield shape.answer([]) | {"usage": shape.usage(decoding.rows)}
        yield "[DONE]"
