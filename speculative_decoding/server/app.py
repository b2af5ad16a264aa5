"""The server's paths, put together. How it listens and ends is for cli/serve.py."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from ..errors import one_line
from .bodies import refusal
from .completions import completions
from .errors import ServerError
from .guard import Guard
from .service import READY, Service
from .translation import TranslationPrompts, languages, translate

LOG = logging.getLogger("speculative_decoding.server")
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
PROBES = ("/health", "/metrics")  # are asked again and again
GONE = 499  # the client left before its answer; nobody sees this status but the log


@dataclass(frozen=True)
class ServerSettings:
    """model: the name that clients give. hosts: by which they may call the server. created: seconds, of the model."""

    model: str
    translation: TranslationPrompts
    hosts: Collection[str] = ()
    token: str | None = None
    log_prompts: bool = False
    created: int = 0


def make_app(service: Service, settings: ServerSettings) -> Starlette:
    """`service` starts and stops with the application."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        yield
        service.stop()

    def note(scope: Scope, status: int, seconds: float) -> None:
        """A line in the log, and the metrics, for each answer."""
        known = scope["path"] in paths
        service.metrics.response(scope["path"] if known else "other", status or GONE)
        client = (scope.get("client") or ("-",))[0]
        prompts = f" {one_line(repr(scope.get('prompts')))}" if settings.log_prompts and "prompts" in scope else ""
        path = one_line(scope["path"])[:200]
        level = logging.DEBUG if path in PROBES else logging.INFO
        LOG.log(level, f"{client} {scope['method']} {path} {status or GONE} {seconds:.3f} s{prompts}")

    def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServerError)
        service.metrics.error(error.code or str(error.status))
        return refusal(request.url.path, error)

    def refuse_path(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return refuse(request, ServerError(error.status_code, error.detail, headers=error.headers))

    def fail(request: Request, error: Exception) -> Response:
        return refuse(request, ServerError(500, "the server failed; its log says why"))

    routes = [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/translate", translate, methods=["POST"]),
        Route("/languages", languages),
        Route("/health", health),
        Route("/metrics", metrics),
        *(Route(path, page) for path in PAGE),
    ]
    paths = {route.path for route in routes}
    handlers: dict[Any, Any] = {
        ServerError: refuse,
        HTTPException: refuse_path,
        ClientDisconnect: gone,
        Exception: fail,
    }
    guard = Middleware(Guard, hosts=settings.hosts, token=settings.token, note=note)
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=handlers, lifespan=lifespan)
    app.state.service, app.state.settings = service, settings
    return app


async def gone(request: Request, error: Exception) -> Response:
    return Response(status_code=GONE)


def about_model(settings: ServerSettings) -> dict[str, object]:
    return {"id": settings.model, "object": "model", "created": settings.created, "owned_by": "speculative-decoding"}


async def models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [about_model(request.app.state.settings)]})


async def model(request: Request) -> Response:
    settings: ServerSettings = request.app.state.settings
    if request.path_params["name"] != settings.model:
        raise ServerError(404, f"there is no such model here, only {settings.model!r}", "model", "model_not_found")
    return JSONResponse(about_model(settings))


async def health(request: Request) -> Response:
    """Ready to take requests, or 503 with what it does instead."""
    state = request.app.state.service.state
    return JSONResponse({"status": "ok" if state == READY else state}, 200 if state == READY else 503)


async def metrics(request: Request) -> Response:
    return Response(request.app.state.service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def page(request: Request) -> Response:
    name, kind = PAGE[request.url.path]
    return Response(resources.files(__package__).joinpath(name).read_bytes(), media_type=kind)
