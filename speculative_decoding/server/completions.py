"""POST /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .bodies import EventStream, cancel_on_disconnect
from .completion_format import parse_completion
from .fields import JSON, read_fields
from .model_names import served_names
from .service import Service
from .streams import stream


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    service.require_text()
    fields = await read_fields(request, service.limits.max_body, JSON)
    assert isinstance(fields, dict)
    completion = parse_completion(fields, service, served_names(request.app.state))
    request.scope["prompts"] = [item.prompt for item in completion.prompts[:: completion.n]]
    if not completion.stream:
        await cancel_on_disconnect(request.receive, service.decode(completion.prompts))
        return JSONResponse(completion.response())

    events = stream(service, completion.prompts, completion.chunk, completion.usage_chunks)
    await cancel_on_disconnect(request.receive, anext(events))  # an error before the first event sets the HTTP status
    return EventStream(events, service.limits.max_seconds)
