"""The HTTP application: its routes, error handlers and access log. `command.py` runs it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Scope

from ..errors import one_line
from ..loading.task_prefixes import Pairs
from ..subpackages import has_subpackage
from .bodies import DOWNLOADS, error_response
from .completions import completions
from .errors import ServerError
from .files import KEPT, KeptFiles, download_file, translate_file
from .guard import PAGE, Guard
from .model_names import served_names
from .service import READY, Service
from .translation import Translator, detect, frontend_settings, languages, suggest, translate

LOG = logging.getLogger("speculative_decoding.server")
NO_PATH = "no such path; send a prompt to POST /v1/completions (chat messages are not supported)"
NO_PATH_TRANSLATION = "a text to POST /translate"
NO_PATH_SPEECH = "a recording to POST /v1/audio/transcriptions, or live speech to a WebSocket at /v1/realtime"
CLIENT_DISCONNECTED = 499  # nginx's status code, which appears only in the log


@dataclass(frozen=True)
class ServerSettings:
    model: str  # name of the model in responses
    prefixes: Pairs  # prompt prefixes for /translate
    hosts: Collection[str] = ()  # host names of this server
    token: str | None = None
    log_prompts: bool = False
    created: int = 0  # creation time of the model, as a Unix timestamp
    note: str = ""  # shown on the web page
    aliases: Collection[str] = ()  # other names of the model
    listed: Collection[str] = ()  # names that /v1/models lists (default: `model`)
    is_speech: bool = False  # whether the model transcribes speech


def make_app(service: Service, settings: ServerSettings) -> Starlette:
    """Create the application, which starts and stops `service`."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        yield
        app.state.files.clear()
        service.stop()

    routes = [*ROUTES, *speech_routes()]
    paths = {route.path for route in routes}
    guard = Middleware(
        Guard, hosts=settings.hosts, token=settings.token, log=partial(log_response, service, settings, paths)
    )
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=error_handlers(service), lifespan=lifespan)
    app.state.service = service
    app.state.settings = settings
    app.state.translator = Translator(service, settings.prefixes)
    app.state.files = KeptFiles(60 * service.limits.keep_files, KEPT * service.limits.max_body)
    return app


def speech_routes() -> list[Route | WebSocketRoute]:
    """Return the routes for recordings and live speech, if the subpackage speech/ is installed."""
    if not has_subpackage("speech"):
        return []
    from .realtime import realtime
    from .transcriptions import transcribe

    return [
        WebSocketRoute("/v1/realtime", realtime),
        Route("/v1/audio/transcriptions", partial(transcribe, task="transcribe"), methods=["POST"]),
        Route("/v1/audio/translations", partial(transcribe, task="translate"), methods=["POST"]),
    ]


def error_handlers(service: Service) -> dict[Any, Any]:
    """Return the functions that convert exceptions to responses and count them.

    All of them are coroutines, because Starlette would call plain functions in a different thread.
    """

    async def on_server_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServerError)
        service.metrics.errors.labels(error.code or error.status).inc()
        return error_response(request.url.path, error)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = no_path() if error.status_code == 404 else error.detail
        return await on_server_error(request, ServerError(error.status_code, message, headers=error.headers))

    async def on_exception(request: Request, error: Exception) -> Response:
        return await on_server_error(request, ServerError(500, "the server failed; see its log"))

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_DISCONNECTED)

    return {
        ServerError: on_server_error,
        HTTPException: on_http_exception,
        ClientDisconnect: on_disconnect,
        Exception: on_exception,
    }


def no_path() -> str:
    """Return the message for an unknown path, which lists the paths that this installation has."""
    optional = {"documents": NO_PATH_TRANSLATION, "speech": NO_PATH_SPEECH}
    return ", ".join([NO_PATH, *(words for subpackage, words in optional.items() if has_subpackage(subpackage))])


def log_response(
    service: Service, settings: ServerSettings, paths: Collection[str], scope: Scope, status: int, seconds: float
) -> None:
    """Log a response, and count it in the metrics.

    Args:
        service: The service with the metrics.
        settings: Determines whether prompts are logged.
        paths: The paths that the metrics distinguish.
        scope: The request.
        status: The HTTP status, or 0 if no response was sent.
        seconds: The duration of the request.
    """
    status = status or CLIENT_DISCONNECTED
    service.metrics.responses.labels(scope["path"] if scope["path"] in paths else "other", status).inc()
    client = (scope.get("client") or ("-",))[0]
    prompts = f" {one_line(repr(scope.get('prompts')))}" if settings.log_prompts and "prompts" in scope else ""
    path = one_line(scope["path"])[:200]
    if path.startswith(DOWNLOADS):
        path = f"{DOWNLOADS}..."  # anyone who knows the name can download the file
    is_polled = path in ("/health", "/metrics")
    level = logging.DEBUG if is_polled else logging.INFO
    LOG.log(level, f"{client} {scope.get('method', 'GET')} {path} {status} {seconds:.3f} s{prompts}")


def model_fields(settings: ServerSettings, name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": settings.created, "owned_by": "speculative-decoding"}


async def models(request: Request) -> Response:
    settings: ServerSettings = request.app.state.settings
    listed = dict.fromkeys(settings.listed or (settings.model,))
    return JSONResponse({"object": "list", "data": [model_fields(settings, name) for name in listed]})


async def model(request: Request) -> Response:
    settings: ServerSettings = request.app.state.settings
    requested = request.path_params["name"]
    found = served_names(request.app.state).find(requested)
    return JSONResponse(model_fields(settings, requested if requested in settings.listed else found))


async def health(request: Request) -> Response:
    """Return status 200 if the server is ready, otherwise status 503 and the server's state."""
    state = request.app.state.service.state
    if state == READY:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": state}, 503)


async def metrics(request: Request) -> Response:
    return Response(request.app.state.service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def page(request: Request) -> Response:
    settings: ServerSettings = request.app.state.settings
    text = package_text("page_speech.html" if settings.is_speech else "page_text.html")
    return Response(text.replace("{note}", escape(settings.note)), media_type="text/html")


async def page_file(request: Request) -> Response:
    path = request.url.path
    return Response(package_text(path.removeprefix("/")), media_type=PAGE[path])


def package_text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


ROUTES = (
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/models", models),
    Route("/v1/models/{name:path}", model),
    Route("/translate", translate, methods=["POST"]),
    Route("/translate_file", translate_file, methods=["POST"]),
    Route("/download_file/{name}", download_file),
    Route("/detect", detect, methods=["POST"]),
    Route("/languages", languages),
    Route("/frontend/settings", frontend_settings),
    Route("/suggest", suggest, methods=["POST"]),
    Route("/health", health),
    Route("/metrics", metrics),
    Route("/", page),
    *(Route(path, page_file) for path in PAGE),
)
