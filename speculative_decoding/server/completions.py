"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..decoding.stats import Round
from .bodies import EventStream, cancel_on_disconnect, read_fields
from .completion_format import CompletionRequest, CompletionResponse, parse_completion_request
from .errors import ServerError
from .model_names import served_names
from .prompts import client_prompts
from .service import Service


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    names = served_names(request.app.state)
    service.require_text()
    fields = await read_fields(request, service.limits.max_body)
    completion = parse_completion_request(fields, service, names)
    request.scope["prompts"] = [prompt for prompt, _ in completion.prompts]
    response = CompletionResponse(names.id, completion, service.session)
    if not completion.stream:
        return JSONResponse(await cancel_on_disconnect(request.receive, complete(service, completion, response)))

    events = stream(service, completion, response)
    await cancel_on_disconnect(request.receive, anext(events))  # an error here still sets the HTTP status
    return EventStream(events, service.limits.max_seconds)


async def complete(service: Service, completion: CompletionRequest, response: CompletionResponse) -> dict[str, Any]:
    with service.request(client_prompts(completion.prompts)) as client:
        await client.wait_until_finished()
        return response.complete(client.items)


async def stream(
    service: Service, completion: CompletionRequest, response: CompletionResponse
) -> AsyncGenerator[dict[str, Any] | str | None]:
    """Yield None when the engine has accepted all prompts, then the events of the stream.

    A `ServerError` before that first None is raised; a later one is the last event. None is also yielded after every
    15 seconds without an event, to keep the connection open.
    """
    with service.request(client_prompts(completion.prompts)) as client:
        await client.wait_until_queued()
        yield None
        try:
            for prompt in client.items:
                if prompt.finish_reason is not None:  # it is blank
                    yield response.chunk(prompt, Round([], [], 0, finish_reason=prompt.finish_reason), [])
            async for found in client.progress(timeout=15.0):
                if found is None:
                    yield None
                    continue
                prompt, event = found
                chunk = response.chunk(prompt, event.round, event.texts)
                if chunk is not None:
                    yield chunk
        except ServerError as error:
            service.metrics.errors.labels(error.code or error.status).inc()
            yield error.content
            return
        if completion.include_usage:
            yield response.usage_chunk(client.items)
        yield "[DONE]"
