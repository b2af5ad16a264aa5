"""A real server within this process, for tests and for the commands that try it hard: uvicorn in a thread."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import httpx
import uvicorn

from speculative_decoding import Engine, Event, Session, load
from speculative_decoding.cli.serve import make_server
from speculative_decoding.loading.load import BUNDLED
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.server.app import ServerSettings, make_app
from speculative_decoding.server.decoding_thread import DecodingThread
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.metrics import Metrics
from speculative_decoding.server.service import Service
from speculative_decoding.server.translation import TranslationPrompts

MODEL = "t5-web-docs"
PAIRS = TranslationPrompts({("en", "de"): "translate English to German: "})
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # a new one takes long
GERMAN = "translate English to German: The method returns the value."
GRAMMAR = "grammar: It were a cod business."
PATIENCE = 600.0  # seconds: nobody waits so long but for a fault


@cache
def bundled() -> Session:
    return load(BUNDLED / MODEL, draft=BUNDLED / "t5-web-docs-head")


class Gated:
    """A session whose engines do a round only as often as a test says, and fail where it says so."""

    def __init__(self, session: Session) -> None:
        self._session, self._rounds, self.failures = session, threading.Semaphore(0), 0
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def engine(self, options: GenerationOptions, slots: int) -> Engine:
        engine = self._session.engine(options, slots)
        step = engine.step

        def gated() -> list[Event]:
            self._rounds.acquire()
            self.calls += 1
            if self.failures and engine.waiting + engine.decoding:
                self.failures -= 1
                raise MemoryError("planted")
            return step()

        engine.step = gated  # type: ignore[method-assign]
        return engine

    def allow(self, rounds: int = 10_000) -> None:
        self._rounds.release(rounds)

    def hold(self) -> None:
        """None more. While nothing is decoded."""
        self._rounds = threading.Semaphore(0)


class Serving:
    """url: where it listens. ended: what it ended with."""

    def __init__(self, service: Service, device: DecodingThread, server: uvicorn.Server, port: int) -> None:
        self.service, self.device, self.server, self.url = service, device, server, f"http://127.0.0.1:{port}"
        self.ended: list[Exception | None] = []

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, verify=NO_TLS, **options)

    def post(self, path: str = "/v1/completions", /, **fields: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=fields)

    def metric(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(f"speculative_decoding_{name}", labels) or 0.0


@contextmanager
def serving(session: Any = None, limits: Limits | None = None, **settings: Any) -> Iterator[Serving]:
    """session: by default the bundled pair's. It ends when nothing is left to be done."""
    limits, ready = limits or Limits(), threading.Event()
    device = DecodingThread(lambda: nullcontext(bundled() if session is None else session), limits)
    made: list[Serving] = []

    async def run(opened: socket.socket) -> None:
        service = Service(device, limits, Metrics())
        app = make_app(service, ServerSettings(**{"model": MODEL, "translation": PAIRS} | settings))
        server = make_server(app, service)
        made.append(Serving(service, device, server, opened.getsockname()[1]))

        def end(problem: Exception | None) -> None:
            made[0].ended.append(problem)
            server.should_exit = True

        service.on_end = end
        tell_ready = service._ready
        service._ready = lambda session: (tell_ready(session), ready.set())  # type: ignore
        await server.serve(sockets=[opened])

    with socket.create_server(("127.0.0.1", 0)) as opened:
        thread = threading.Thread(target=lambda: asyncio.run(run(opened)))
        thread.start()
        assert ready.wait(PATIENCE)
        try:
            yield made[0]
        finally:
            made[0].server.should_exit = True
            thread.join()


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for what another thread does; the limit is only for a test that fails."""
    waiting = threading.Event()
    for _ in range(int(seconds * 200)):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("it never came true")


def events(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    """Of a stream; its last line must be [DONE], unless an error is the last."""
    last: Any = None
    for line in response.iter_lines():
        if line.startswith("data: "):
            assert last != "[DONE]"
            last = line[6:] if line == "data: [DONE]" else json.loads(line[6:])
            if last != "[DONE]":
                yield last
    assert last == "[DONE]" or "error" in last
