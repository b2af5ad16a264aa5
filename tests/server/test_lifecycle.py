"""Tests the server under load, with disconnecting clients, after failures, at shutdown, and from the command line."""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
from collections.abc import Iterator
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import mlx.core as mx
import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.models.base import EncoderDecoder
from speculative_decoding.server import command as serve_command
from speculative_decoding.server.decoding_thread import MAX_FAILED_ROUNDS
from speculative_decoding.server.limits import Limits
from tests.support.serving import Gated, Serving, drain, held, serving
from tests.support.tiny import noisy_copy, tiny_model, tiny_model_like
from tests.support.together import Letters
from tests.support.waiting import PATIENCE, eventually

TARGET = tiny_model()
DRAFT = noisy_copy(TARGET)
FEW = Limits(slots=2, queue=2, max_prompts=3, max_output_tokens=20)
NO_PREFIX = {("en", "de"): ""}
TOKEN = "correct-horse-battery"


def tiny(model: EncoderDecoder = TARGET) -> Session:
    return Session(model, Letters(), DRAFT, GenerationOptions(max_tokens=8, num_draft_tokens=3))


@cache
def alone(prompt: str) -> str:
    return tiny().generate(prompt).text


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Serving, Gated]]:
    with held(tiny(), FEW) as both:
        yield both


@pytest.fixture
def gated(shared: tuple[Serving, Gated]) -> Iterator[tuple[Serving, Gated]]:
    """Return the shared server. Tests must not stop it."""
    server, session = shared
    yield server, session
    session.allow()
    eventually(lambda: server.service.admitted == server.thread.decoding == server.thread.waiting == 0)
    session.hold()


@pytest.fixture
def ending() -> Iterator[tuple[Serving, Gated]]:
    """Run a separate server for a test that stops it."""
    with held(tiny(), FEW) as both:
        yield both


def start(server: Serving, **fields: Any) -> tuple[threading.Thread, list[httpx.Response]]:
    """Send a request in a thread, which appends the response to the list."""
    found: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: found.append(server.post(**fields)))
    thread.start()
    return thread, found


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnected_client_frees_its_slots(gated: tuple[Serving, Gated], stream: bool) -> None:
    server, session = gated
    before = server.metric("prompts_total", finish_reason="cancelled")
    body = json.dumps({"prompt": ["abc", "fed"], "stream": stream})
    leaving = HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE)
    leaving.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    eventually(lambda: server.service.admitted == 2)
    if stream:
        session.allow(1)
        with leaving.getresponse() as response:
            assert response.readline().startswith(b"data: ")
    leaving.close()
    eventually(lambda: server.service.admitted == 0)
    session.allow(2)  # the round in progress, and one without the cancelled prompts
    eventually(lambda: server.thread.decoding == server.thread.waiting == 0, 20)
    thread, found = start(server, prompt=["cab", "b"])
    session.allow()
    thread.join()
    assert [each["text"] for each in found[0].json()["choices"]] == [alone("cab"), alone("b")]
    eventually(lambda: server.thread.decoding == server.thread.waiting == 0)
    assert server.metric("prompts_total", finish_reason="cancelled") == before + 2


def test_the_idle_thread_sleeps(gated: tuple[Serving, Gated]) -> None:
    server, session = gated
    session.allow()
    server.post(prompt="abc")
    eventually(lambda: server.thread.decoding == 0)
    calls = session.calls
    wake = server.thread._wake
    for _ in range(5):
        with server.client() as client:
            assert client.get("/health").json() == {"status": "ok"}
    assert session.calls == calls and wake._waiters  # type: ignore[attr-defined]  # the thread sleeps


def test_the_first_request_compiles_no_pass() -> None:
    model = tiny_model_like(TARGET)
    model.update(TARGET.parameters())
    with serving(tiny(model), FEW) as server:
        compiled: Any = model._compiled
        shapes = compiled.cache_info().misses
        for fields in ({}, {"num_draft_tokens": 0}):
            assert server.post(prompt="abc", **fields).json()["choices"][0]["text"] == alone("abc")
        assert compiled.cache_info().misses == shapes > 0


def test_a_failed_prompt_fails_only_its_request(caplog: pytest.LogCaptureFixture) -> None:
    bad = tiny_model_like(TARGET)
    bad.update(TARGET.parameters())
    weight = mx.array(bad.embedding.weight)
    weight[13] = mx.nan  # the embedding of the letter l
    bad.embedding.weight = weight
    mx.eval(weight)
    with serving(tiny(bad), FEW) as server:
        waiting = [start(server, prompt=prompt, max_tokens=8) for prompt in ("abc", "lab")]
        for thread, _ in waiting:
            thread.join()
        good, failed = (found[0] for _, found in waiting)
        assert good.status_code == 200 and good.json()["choices"][0]["text"]
        assert failed.status_code == 500 and failed.json()["error"]["code"] == "not_finite"
        assert server.metric("errors_total", code="not_finite") == 1 and server.service.admitted == 0


def test_the_server_continues_after_a_failed_round(
    gated: tuple[Serving, Gated], caplog: pytest.LogCaptureFixture
) -> None:
    server, session = gated
    session.allow()
    for _ in range(2):  # a finished request resets the count
        for _ in range(MAX_FAILED_ROUNDS - 1):
            session.failures = 1
            failed = server.post(prompt=["abc", "fed"])
            assert failed.status_code == 500 and "planted" not in failed.text
        assert server.post(prompt="abc").json()["choices"][0]["text"] == alone("abc")
    assert caplog.text.count("MemoryError: planted") == 2 * (MAX_FAILED_ROUNDS - 1) and not server.ended


def test_repeated_failed_rounds_end_the_server(ending: tuple[Serving, Gated], caplog: pytest.LogCaptureFixture) -> None:
    server, session = ending
    session.failures = MAX_FAILED_ROUNDS
    session.allow()
    for _ in range(MAX_FAILED_ROUNDS):
        assert server.post(prompt="abc").status_code == 500
    eventually(lambda: bool(server.ended))
    assert isinstance(server.ended[0], MemoryError) and server.service.state == "failed"
    assert caplog.text.count("MemoryError: planted") == MAX_FAILED_ROUNDS


def test_a_failed_round_of_a_sharded_model_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """The server cannot continue, because other ranks may have computed a part of the round."""
    model = tiny_model_like(TARGET)
    model.update(TARGET.parameters())
    model.ranks = 2
    session = Gated(tiny(model))
    session.allow()
    with serving(session, FEW) as server:
        session.failures = 1
        assert server.post(prompt="abc").status_code == 500
        eventually(lambda: bool(server.ended))
        assert isinstance(server.ended[0], MemoryError)


def test_a_second_signal_ends_running_requests(ending: tuple[Serving, Gated], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server, session = ending
    thread, found = start(server, prompt="abc")
    eventually(lambda: server.service.admitted == 1)
    drain(server)
    assert server.service.admitted == 1 and not server.server.should_exit
    refused = server.post("/translate", prompt="b")
    assert refused.status_code == 503 and "retry-after" in refused.headers
    with server.client() as client:
        health = client.get("/health")
        assert health.status_code == 503 and health.json() == {"status": "stopping"}
    server.server.handle_exit(signal.SIGINT, None)
    thread.join()
    assert found[0].status_code == 503 and found[0].json()["error"]["code"] == "stopping"
    session.allow()
    eventually(lambda: server.ended == [None])
    assert caplog.text.count("stopping within 30 s; a second signal ends the running requests") == 1


class TwoLanguageTokenizer(Letters):
    """A tokenizer like NLLB's: source and translation begin with their language token."""

    languages = MappingProxyType({"eng_Latn": 20, "deu_Latn": 21})

    def encode(self, text: str, language: str | None = None) -> list[int]:
        return [self.languages[language or "eng_Latn"], *super().encode(text)]


def test_a_model_with_language_tokens_translates() -> None:
    options = GenerationOptions(max_tokens=FEW.max_output_tokens, num_draft_tokens=3)
    session = Session(TARGET, TwoLanguageTokenizer(), DRAFT, options)
    alone = session.generate("beef", src_lang="deu_Latn", tgt_lang="eng_Latn")
    assert alone.finish_reason == "stop"
    with serving(session, FEW, prefixes={}) as server:
        answer = server.post("/translate", q="beef", source="deu_Latn", target="eng_Latn").json()
        assert answer["translatedText"] == alone.text
        missing = server.post(prompt="beef")
        assert missing.status_code == 400 and missing.json()["error"]["param"] == "tgt_lang"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Serving]:
    settings = {"token": TOKEN, "hosts": {"texts.example"}, "prefixes": NO_PREFIX, "note": "a <demo>"}
    with serving(tiny(), FEW, created=object(), **settings) as server:
        yield server


def test_the_guard_precedes_every_path(guarded: Serving) -> None:
    assert answer(guarded, Host="evil.example").json()["error"]["code"] == "wrong_host"
    assert answer(guarded, "/metrics", Host="texts.example", Origin="https://texts.example").status_code == 200
    assert answer(guarded, Host="texts.example", Origin="null").json()["error"]["code"] == "wrong_origin"
    assert answer(guarded, "/download_file/x", token="x").json()["error"].startswith("missing or wrong token")
    assert '<p class="hint">a &lt;demo&gt;</p>' in answer(guarded, "/", token=None).text
    with guarded.client() as client:
        own = {"Origin": guarded.url, "Authorization": f"Bearer {TOKEN}"}
        preflight = client.options("/v1/completions", headers=own)
    assert preflight.status_code == 405 and not [name for name in preflight.headers if "access-control" in name]


def test_libretranslate_sends_its_token_in_the_body(guarded: Serving) -> None:
    fields = {"q": "abc", "source": "en", "target": "de"}
    statuses = [guarded.post("/translate", **fields, **own).status_code for own in ({}, {"api_key": "x"})]
    assert statuses == [401, 401]
    found = guarded.post("/translate", **fields, api_key=TOKEN)
    assert found.json()["findings"][0]["kind"] == "cut"  # the text was decoded


def answer(server: Serving, path: str = "/v1/models", token: str | None = TOKEN, **headers: str) -> httpx.Response:
    own = headers | ({} if token is None else {"Authorization": f"Bearer {token}"})
    with server.client() as client:
        return client.get(path, headers=own)


@pytest.mark.parametrize(("path", "status"), [("/", 200), ("/nothing", 404), ("/v1/models", 500)])
def test_all_responses_have_security_headers(
    guarded: Serving, path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Error responses have the headers, too. A value that JSON cannot represent makes the server fail."""
    found = answer(guarded, path)
    assert found.status_code == status and "default-src 'none'" in found.headers["content-security-policy"]
    assert found.headers["x-content-type-options"] == "nosniff" and "server" not in found.headers
    assert ("the server failed; see its log" in found.text) == (status == 500)
    eventually(lambda: ("TypeError" in caplog.text) == (status == 500))


def test_the_page_needs_no_other_server_and_runs_no_text() -> None:
    files = [*Path(serve_command.__file__).parent.glob("page*.*")]
    assert {file.suffix for file in files} == {".html", ".css", ".js"}
    text = "".join(file.read_text() for file in files)
    assert not re.search(r"https?://|url\(|@import|innerHTML|eval\(|style=|onclick=", text)


def test_prompts_are_logged_only_with_log_prompts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for log_prompts in (False, True):
        with serving(tiny(), FEW, log_prompts=log_prompts) as server:
            caplog.clear()
            server.post(prompt="abcabc", n=2, temperature=1)
            with server.client() as client:
                client.get("/v1/x%0ay%1b[2Jz")
        assert caplog.text.count("abcabc") == log_prompts and "POST /v1/completions 200" in caplog.text
        lines = [record.getMessage() for record in caplog.records]
        assert any(r"x\ny\x1b" in line for line in lines) and all(line.isprintable() for line in lines if "GET" in line)
