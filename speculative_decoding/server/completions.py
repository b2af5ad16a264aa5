"""POST /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .bodies import EventStream, cancel_on_disconnect
from .completion_format import CompletionResponse, parse_completion_request
from .fields import JSON, read_fields
from .model_names import served_names
from .prompts import client_prompts
from .service import Service
from .streams import stream


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    service.require_text()
    fields = await read_fields(request, service.limits.max_body, JSON)
    assert isinstance(fields, dict)
    completion = parse_completion_request(fields, service, served_names(request.app.state))
    request.scope["prompts"] = [prompt for prompt, _ in completion.prompts]
    response = CompletionResponse(completion, service.session)
    prompts = client_prompts(completion.prompts)
    if not completion.stream:
        await cancel_on_disconnect(request.receive, service.decode(prompts))
        return JSONResponse(response.complete(prompts))

    events = stream(service, prompts, response.chunk, lambda: response.usage_chunks(prompts))
    await cancel_on_disconnect(request.receive, anext(events))  # an error here still sets the HTTP status
    return EventStream(events, service.limits.max_seconds)
