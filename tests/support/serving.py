"""Runs a real server in this process: uvicorn in a thread. Tests and the tools that stress the server use it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import httpx
import pytest
import uvicorn

from speculative_decoding import Engine, Event, Session, load
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.server.app import ServerSettings, make_app
from speculative_decoding.server.connections import ConnectionLimits, make_server
from speculative_decoding.server.decoding_thread import DecodingThread
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.metrics import Metrics
from speculative_decoding.server.service import Service
from tests.support.waiting import PATIENCE, eventually

MODEL = "t5-web-docs"
PAIRS = {("en", "de"): "translate English to German: "}
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # shared, because creating one is slow
GERMAN = "translate English to German: The method returns the value."
GRAMMAR = "grammar: It were a cod business."


@cache
def bundled() -> Session:
    return load(BUNDLED / MODEL, draft=BUNDLED / "t5-web-docs-head")


class Gated:
    """A session whose engines run only as many rounds as a test allows, and fail when a test says so.

    Attributes:
        failures: How many of the next rounds fail.
        calls: How many rounds were run.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rounds = threading.Semaphore(0)
        self.failures = 0
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def engine(self, options: GenerationOptions, slots: int) -> Engine:
        engine = self._session.engine(options, slots)
        step = engine.step

        def gated_step() -> list[Event]:
            self._rounds.acquire()
            self.calls += 1
            if self.failures and engine.waiting + engine.decoding:
                self.failures -= 1
                raise MemoryError("planted")
            return step()

        engine.step = gated_step  # type: ignore[method-assign]
        return engine

    def allow(self, rounds: int = 10_000) -> None:
        self._rounds.release(rounds)

    def hold(self) -> None:
        """Allow no more rounds. Call it only while nothing is decoded."""
        self._rounds = threading.Semaphore(0)


class Serving:
    """A running server.

    Attributes:
        url: Its address.
        ended: The errors that `Service.on_end` was called with.
    """

    def __init__(self, service: Service, thread: DecodingThread, server: uvicorn.Server, port: int) -> None:
        self.service = service
        self.thread = thread
        self.server = server
        self.url = f"http://127.0.0.1:{port}"
        self.ended: list[Exception | None] = []

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, verify=NO_TLS, **options)

    def post(self, path: str = "/v1/completions", /, **fields: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=fields)

    def metric(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(f"speculative_decoding_{name}", labels) or 0.0


@contextmanager
def serving(
    session: Any = None, limits: Limits | None = None, connections: ConnectionLimits | None = None, **settings: Any
) -> Iterator[Serving]:
    """Run a server until the context is left.

    Args:
        session: The session to serve, by default the bundled pair.
        limits: Limits of the server.
        connections: Limits of its connections. By default, no time limit makes a test depend on the clock.
        settings: Fields of `ServerSettings`.
    """
    limits = limits or Limits()
    is_speech = session is not None and session.model.audio is not None
    settings = {"model": MODEL, "prefixes": PAIRS, "is_speech": is_speech} | settings
    connections = connections or ConnectionLimits(seconds=PATIENCE)
    ready = threading.Event()
    thread = DecodingThread(lambda: nullcontext(bundled() if session is None else session), limits)
    made: list[Serving] = []

    async def run(listening: socket.socket) -> None:
        service = Service(thread, limits, Metrics())
        app = make_app(service, ServerSettings(**settings))
        server = make_server(app, service, limits=connections)
        made.append(Serving(service, thread, server, listening.getsockname()[1]))

        def on_end(error: Exception | None) -> None:
            made[0].ended.append(error)
            ready.set()
            server.should_exit = True

        service.on_end = on_end
        on_ready = service._on_ready
        service._on_ready = lambda session: (on_ready(session), ready.set())  # type: ignore
        await server.serve(sockets=[listening])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        loop_thread = threading.Thread(target=lambda: asyncio.run(run(listening)))
        loop_thread.start()
        try:
            assert ready.wait(PATIENCE) and not made[0].ended, made[0].ended
            yield made[0]
        finally:
            made[0].server.should_exit = True
            loop_thread.join()


@contextmanager
def held(session: Session, limits: Limits, **settings: Any) -> Iterator[tuple[Serving, Gated]]:
    """Run a server that decodes only the rounds that a test allows."""
    gated = Gated(session)
    gated.allow()  # for the warm-up
    with serving(gated, limits, **settings) as server:
        gated.hold()
        try:
            yield server, gated
        finally:
            gated.allow()


def drain(server: Serving) -> None:
    """Do what SIGTERM does."""
    server.server.handle_exit(signal.SIGTERM, None)
    eventually(lambda: server.service.state == "stopping")


def require_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert not [record for record in caplog.records if record.exc_info or "Exception" in record.getMessage()]


def events(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a stream. Its last line must be [DONE] or an error."""
    last: Any = None
    for line in response.iter_lines():
        if line.startswith("data: "):
            assert last != "[DONE]"
            last = line[6:] if line == "data: [DONE]" else json.loads(line[6:])
            if last != "[DONE]":
                yield last
    assert last == "[DONE]" or "error" in last
