"""Recordings sent to the server with OpenAI's client. Each transcript equals the session's."""

from __future__ import annotations

import gc
import signal
import socket
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from speculative_decoding import GenerationOptions, InputError, Session
from speculative_decoding.server import service as service_module
from speculative_decoding.server import transcriptions
from speculative_decoding.server.limits import Limits
from speculative_decoding.speech.audio_file import AudioBytes
from speculative_decoding.speech.formats import STREAMED
from speculative_decoding.speech.transcription import Transcription
from speculative_decoding.speech.window_requests import WindowRequests
from tests.support.serving import Serving, serving
from tests.support.speech import Letters, noise, speech_model, wav
from tests.support.tiny import noisy_copy, tiny_model
from tests.support.together import Letters as TextLetters
from tests.support.waiting import PATIENCE, eventually

if TYPE_CHECKING:  # the import takes a second
    import openai

MODEL = "tiny-whisper"
TARGET = speech_model()
DRAFT = noisy_copy(TARGET)
DRAFT.audio = TARGET.audio
RECORDINGS = [noise(seed, seconds) for seed, seconds in enumerate((1.6, 0.55, 0.9, 0.2))]
LIMITS = Limits(slots=2, queue=14, max_audio=60_000, max_audio_seconds=1.7, max_body=20_000, max_prompt_tokens=50)
PATH = "/v1/audio/transcriptions"
FIRST: dict[str, Any] = {  # keep the first text of each window
    "no_speech_threshold": None,
    "logprob_threshold": None,
    "compression_ratio_threshold": None,
    "sample_len": 16,
}


def session(drafter: str = "model") -> Session:
    options = GenerationOptions(drafter=drafter, num_draft_tokens=3, temperature=1)
    return Session(TARGET, Letters(), DRAFT if drafter == "model" else None, options)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(session(), LIMITS, model=MODEL) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def alone(index: int, **options: Any) -> Transcription:
    return session("none").transcribe(RECORDINGS[index], **FIRST | options)


def file(index: int) -> tuple[str, bytes]:
    return f"talk {index}.wav", wav(RECORDINGS[index])


def create(client: openai.OpenAI, index: int = 0, **fields: Any) -> Any:
    own = {name: fields.pop(name) for name in ("seed", "sample_len", "without_timestamps") if name in fields}
    return client.audio.transcriptions.create(model=MODEL, file=file(index), **fields, extra_body=form(own))


def form(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: "none" if value is None else value for name, value in (FIRST | fields).items()}


def post(server: Serving, index: int = 0, path: str = PATH, **fields: Any) -> httpx.Response:
    with server.client() as client:
        return client.post(path, files={"file": file(index)}, data=form(fields))


def uploaded(server: Serving) -> int:
    """Return the bytes of all recordings in memory."""
    return sum(upload.size for upload in server.service._uploads)


@pytest.mark.parametrize("index", range(4))
def test_text_equals_the_sessions(client: openai.OpenAI, index: int) -> None:
    found, expected = create(client, index), alone(index)
    assert found.text == expected.text.strip() and (found.text or index)
    assert (found.usage.type, found.usage.seconds) == ("duration", expected.seconds)


@pytest.mark.parametrize("name", ["text", "srt", "vtt"])
def test_formats_are_those_of_the_command_line(client: openai.OpenAI, server: Serving, name: Any) -> None:
    expected = alone(0)
    content = f"{expected.text.strip()}\n" if name == "text" else "".join(STREAMED[name](expected.segments))
    assert create(client, response_format=name) == content and content.count("-->") == content.count("\n\n") - (
        name == "vtt"
    )
    kind = post(server, response_format=name).headers["content-type"]
    assert kind.startswith({"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}[name])


@pytest.mark.parametrize("granularities", [None, ["segment"], ["word"], ["word", "segment"]])
def test_verbose_json_has_the_fields_of_openai(client: openai.OpenAI, granularities: Any) -> None:
    given = {} if granularities is None else {"timestamp_granularities": granularities}
    found = create(client, response_format="verbose_json", language="de", **given)
    expected = alone(0, language="de", word_timestamps="word" in (granularities or ()))
    assert (found.text, found.language, found.duration) == (expected.text.strip(), "de", expected.seconds)
    assert found.task == "transcribe"  # type: ignore[attr-defined]
    segments = None if granularities == ["word"] else [(each.seek, each.start, each.end) for each in expected.segments]
    assert segments == (found.segments and [(each.seek, each.start, each.end) for each in found.segments])
    if segments:
        assert [each.tokens for each in found.segments] == [each.tokens for each in expected.segments]
        assert found.segments[0].avg_logprob == pytest.approx(expected.segments[0].avg_logprob, abs=1e-4)
    words = [(word.word.strip(), word.start, word.end) for each in expected.segments for word in each.words or ()]
    assert words == [(each.word, each.start, each.end) for each in found.words or ()]
    assert bool(words) == ("word" in (granularities or ()))


def test_translations_and_options(client: openai.OpenAI) -> None:
    found = client.audio.translations.create(
        model=MODEL, file=file(2), prompt="ab", response_format="verbose_json", extra_body=form({})
    )
    expected = alone(2, task="translate", initial_prompt="ab")
    assert (found.text, found.language) == (expected.text.strip(), "en")
    assert found.text != create(client, 2).text
    options: Any = {"temperature": 0.9, "seed": 7, "sample_len": 9, "without_timestamps": True}
    assert create(client, 2, **options).text == alone(2, **options).text.strip() != create(client, 2).text


def test_a_language_may_be_given_by_name(server: Serving) -> None:
    assert post(server, 1, language="German").json() == post(server, 1, language="de").json()
    assert post(server, 1, language="german").json() != post(server, 1, language="English").json()


def test_a_stream_sends_each_segment(client: openai.OpenAI) -> None:
    expected = alone(0)
    found = [*create(client, stream=True)]
    deltas = [each.delta for each in found if each.type == "transcript.text.delta"]
    assert len(deltas) > 1 and "".join(deltas).strip() == found[-1].text == expected.text.strip()
    assert found[-1].type == "transcript.text.done"


def test_concurrent_clients_get_the_same_texts_as_one(server: Serving) -> None:
    """Also if windows fall back to higher temperatures, with languages and prompts of their own."""
    requests: list[tuple[int, dict[str, Any]]] = [
        (0, {}),
        (1, {"language": "de", "logprob_threshold": -0.1}),
        (2, {"prompt": "fed cab"}),
        (1, {"temperature": 0.8, "seed": 9}),
        (3, {"logprob_threshold": -0.1, "seed": 5}),
        (2, {}),
        (0, {"logprob_threshold": -0.1, "compression_ratio_threshold": 2.4}),
    ]
    with ThreadPoolExecutor(6) as pool:
        found = [*pool.map(lambda one: post(server, one[0], **one[1]).json()["text"], requests)]
    for text, (index, options) in zip(found, requests, strict=True):
        renamed = {"initial_prompt" if name == "prompt" else name: value for name, value in options.items()}
        assert text == alone(index, **renamed).text.strip()


def test_drafts_do_not_copy_the_text_of_other_clients() -> None:
    """If they did, all drafts for the same recording would be accepted the second time."""
    names = ("generated_tokens_total", "accepted_tokens_total")
    with serving(session("ngram"), LIMITS, model=MODEL) as server:
        post(server, 0)
        before = [server.metric(name) for name in names]
        post(server, 0)
        generated, accepted = (server.metric(name) - old for name, old in zip(names, before, strict=True))
    assert generated == before[0] > 10 and accepted < generated / 4


INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"model": "gpt-4o-transcribe"}, "model", "does not exist"),
    ({"response_format": "diarized_json"}, "response_format", "one of json, verbose_json, text, srt, vtt"),
    ({"stream": "yes"}, "stream", "true or false"),
    ({"stream": "true", "response_format": "srt"}, "stream", "use json"),
    ({"timestamp_granularities[]": "word"}, "timestamp_granularities", "use verbose_json"),
    ({"timestamp_granularities[]": "line", "response_format": "verbose_json"}, "timestamp_granularities", "one of"),
    ({"include[]": "logprobs"}, "include", "not supported"),
    ({"chunking_strategy": "auto"}, "chunking_strategy", "not supported"),
    ({"known_speaker_names[]": "a"}, "known_speaker_names", "not supported"),
    ({"temperature": "hot"}, "temperature", "must be"),
    ({"temperature": "nan"}, "temperature", "must be"),
    ({"language": "xx"}, "language", "unknown; choose one of the 2 languages"),
    ({"task": "translate"}, "task", "/v1/audio/translations"),
    ({"clip_timestamps": "1,2"}, "clip_timestamps", "not a field"),
    ({"sample_len": "0"}, "sample_len", "must be"),
    ({"num_draft_tokens": "x"}, "num_draft_tokens", "0 to 64 or one of auto, not 'x'"),
    ({"num_beams": "2"}, "num_beams", "unknown field"),
    ({"stop": "a"}, "stop", "transcriptions have no such option"),
    ({"hallucination_silence_threshold": "1"}, "hallucination_silence_threshold", "without timestamp_granularities[]"),
    ({"prompt": "x" * 4000}, "prompt", "4000 characters"),
    ({"prompt": "<|en|>"}, "prompt", "special token"),
    ({"language": ["de", "en"]}, "language", "given twice"),
    ({"langage": "en"}, "langage", "langage: unknown field; did you mean language?"),
    ({"colour": "red"}, "colour", "unknown field"),
]


@pytest.mark.parametrize(("fields", "param", "words"), INVALID, ids=lambda value: str(value)[:40])
def test_invalid_fields_are_named_in_one_line(server: Serving, fields: Any, param: str, words: str) -> None:
    response = post(server, 3, **fields)
    error = response.json()["error"]
    assert response.status_code == (404 if param == "model" else 400), error
    assert error["param"] == param and words in error["message"] and "\n" not in error["message"], error
    assert uploaded(server) == 0


def test_empty_fields_count_as_missing(server: Serving) -> None:
    expected = post(server, 1).json()["text"]
    names = ("prompt", "language", "temperature", "model", "response_format", "stream", "seed", "include[]", "task")
    for fields in ({name: ""} for name in names):
        assert post(server, 1, **fields).json().get("text") == expected, fields
    everything = {**dict.fromkeys(names, ""), "timestamp_granularities[]": ""}
    assert post(server, 1, **everything).json()["text"] == expected
    refused = post(server, 1, colour="")
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "unknown_field"


def test_whisper_1_names_the_model_that_is_served(server: Serving, client: openai.OpenAI) -> None:
    expected = post(server, 0).json()["text"]
    assert post(server, 0, model="whisper-1").json()["text"] == expected
    assert post(server, 0, model="whisper-2").status_code == 404
    assert [each.id for each in client.models.list()] == [MODEL] and client.models.retrieve("whisper-1").id == MODEL


FILES: list[tuple[bytes, int, str]] = [
    (b"", 400, "file: "),
    (b"not audio at all", 400, "file: "),
    (wav(np.zeros(0, np.float32)), 400, "file: no sound"),
    (wav(noise(0, 1.72)), 400, "file: longer than 1.7 seconds"),
    (b"\0" * 60_001, 413, "file: must have at most 60000 bytes"),
    (b"\0" * 90_000, 413, "the body must have at most 80000 bytes"),
]


@pytest.mark.parametrize(("content", "status", "words"), FILES, ids=lambda value: str(value)[:12])
def test_unsuitable_files_are_refused_in_one_line(server: Serving, content: bytes, status: int, words: str) -> None:
    with server.client() as client:
        response = client.post(PATH, files={"file": ("../x.wav", content)})
    error = response.json()["error"]["message"]
    assert response.status_code == status and words in error and "\n" not in error and "x.wav" not in error, error
    assert uploaded(server) == 0


FORM = 'multipart/form-data; boundary="b"'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
BODIES: list[tuple[str, bytes, int, str]] = [
    ("application/json", b"{}", 415, "multipart/form-data"),
    ("multipart/form-data", b"", 400, "no boundary"),
    (FORM, b"", 400, "its end is missing"),
    (FORM, FILE + b"abc\r\n", 400, "its end is missing"),
    (FORM, b"--b\r\nabc\r\n--b--", 400, "invalid character"),
    (FORM, b"--bx\r\n\r\nabc\r\n--b--", 400, "end of boundary"),
    (FORM, b"--b\r\nA: b\r\n\r\nabc\r\n--b--", 400, "no name"),
    (FORM, b'--b\r\nContent-Disposition: form-data; name="\xff"\r\n\r\na\r\n--b--', 400, "not UTF-8"),
    (FORM, b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n\xff\r\n--b--', 400, "prompt: is not UTF-8"),
    (FORM, b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\na\r\n--b--', 400, "file: must be a file"),
    (FORM, FILE.replace(b'"file"', b'"prompt"') + b"a\r\n--b--", 400, "prompt: must not be a file"),
    (FORM, FILE + b"a\r\n" + FILE + b"a\r\n--b--", 400, "file: is given twice"),
    (FORM, (FILE + b"a\r\n") * 102 + b"--b--", 400, "over 100 fields"),
    (FORM, b"--b--", 400, "file: is missing"),
]


@pytest.mark.parametrize(("kind", "body", "status", "words"), BODIES, ids=lambda value: str(value)[:30])
def test_malformed_forms_are_refused(server: Serving, kind: str, body: bytes, status: int, words: str) -> None:
    with server.client() as client:
        for content in (body, iter([body[:70], body[70:]])):  # with Content-Length, and chunked
            response = client.post(PATH, content=content, headers={"Content-Type": kind})
            assert response.status_code == status and words in response.json()["error"]["message"], response.text


def test_recordings_in_memory_are_limited(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "MAX_UPLOADS", 0.2)
    refused = post(server, 1)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0 and uploaded(server) == 0
    assert post(server, 3).status_code == 200


def test_frames_count_as_memory(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    received = len(httpx.Request("POST", server.url, files={"file": file(0)}, data=form({})).read())
    largest = LIMITS.max_audio + LIMITS.max_audio_seconds * 100 * 6 * 4
    monkeypatch.setattr(service_module, "MAX_UPLOADS", (received + 2_000) / largest)
    refused = post(server, 0)  # the file fits, but not its 162 frames with 6 bins
    assert refused.status_code == 429 and uploaded(server) == server.service.admitted == 0
    assert post(server, 3).status_code == 200


def test_models_refuse_the_other_kind_of_input(server: Serving) -> None:
    for path in ("/v1/completions", "/translate"):
        response = server.post(path, prompt="a", q="a")
        assert response.status_code == 404 and "transcribes speech" in response.text
    with server.client() as client:
        assert client.get("/languages").status_code == 404
        assert client.get("/health").json() == {"status": "ok"}
    with serving(Session(tiny_model(), TextLetters(), options=GenerationOptions(drafter="none")), LIMITS) as other:
        response = post(other)
        assert response.status_code == 404 and "this model reads text" in response.json()["error"]["message"]


def test_a_client_that_disconnects_frees_its_slot_and_memory() -> None:
    with gated(LIMITS, session()) as (server, may_step):
        with server.client() as client:
            sent = {"files": {"file": file(0)}, "data": form({"stream": "true"})}
            with client.stream("POST", PATH, **sent) as response:
                assert response.status_code == 200
                eventually(lambda: server.service.admitted == 1)
                assert uploaded(server) == 162 * 6 * 4  # the frames, and no longer the file
                eventually(lambda: not [each for each in gc.get_objects() if isinstance(each, AudioBytes)])
        may_step.set()
        eventually(lambda: server.service.admitted == server.thread.decoding == uploaded(server) == 0)
        assert server.metric("prompts_total", finish_reason="cancelled") == 1
        assert post(server, 1).json()["text"] == alone(1).text.strip()


def test_a_late_recording_answers_504_and_a_stream_ends_with_the_error() -> None:
    late = Limits(slots=1, queue=2, max_prompts=1, max_seconds=1e-6)
    with serving(session(), late, model=MODEL) as server:
        assert post(server).status_code == 504 == post(server, stream="true").status_code
        assert uploaded(server) == 0 == server.service.admitted


@contextmanager
def gated(limits: Limits, own: Session) -> Iterator[tuple[Serving, threading.Event]]:
    """Run a server that decodes only while an event is set."""
    may_step = threading.Event()
    may_step.set()  # for the warm-up
    make_engine = own.engine

    def engine(*args: Any) -> Any:
        made = make_engine(*args)
        step = made.step
        made.step = lambda: (may_step.wait(), step())[1]  # type: ignore[method-assign]
        return made

    own.engine = engine  # type: ignore[method-assign]
    with serving(own, limits, model=MODEL) as server:
        may_step.clear()
        try:
            yield server, may_step
        finally:
            may_step.set()


def test_a_short_recording_passes_long_ones_and_changes_no_text() -> None:
    """Windows of recordings take turns in the slots. Before, a short one waited until a long one had ended."""
    long = [noise(seed, 9.0) for seed in range(5)]  # 15 windows each
    finished: list[str] = []
    limits = Limits(slots=2, queue=14, max_prompts=2)

    def send(name: str, samples: Any, fields: dict[str, Any]) -> str:
        with server.client() as client:
            found = client.post(PATH, files={"file": (name, wav(samples))}, data=form(fields)).json()
        finished.append(name)
        return str(found["text"])

    # Three fall back to several temperatures, so that turns also change between outputs for the same window
    fields = [{"logprob_threshold": -0.1, "seed": 3} if i % 2 else {} for i in range(5)]
    with gated(limits, session()) as (server, may_step), ThreadPoolExecutor(7) as pool:
        texts = [pool.submit(send, f"long {i}", each, fields[i]) for i, each in enumerate(long)]
        eventually(lambda: server.service.admitted == 5)
        texts += [pool.submit(send, "short", RECORDINGS[1], {"seed": 3})]
        eventually(lambda: server.service.admitted == 6)
        may_step.set()
        found = [text.result() for text in texts]
    assert finished[0] == "short", finished
    for text, samples, own in zip(found, [*long, RECORDINGS[1]], [*fields, {"seed": 3}], strict=True):
        assert text == session("none").transcribe(samples, **FIRST | own).text.strip()


class Opening:
    """Replaces `opening`: says when it has begun, and waits until a test lets it continue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self._opening = transcriptions.opening
        monkeypatch.setattr(transcriptions, "opening", self)

    def __call__(self, *args: Any) -> Any:
        self.has_begun.set()
        while not self.may_end.wait(0.001):
            yield
        return (yield from self._opening(*args))


def drain(server: Serving) -> None:
    """Do what SIGTERM does."""
    server.server.handle_exit(signal.SIGTERM, None)
    eventually(lambda: server.service.state == "stopping")


def half_sent(server: Serving) -> tuple[socket.socket, bytes]:
    """Send a part of a recording. Returns the connection and the rest."""
    request = httpx.Request("POST", server.url + PATH, files={"file": file(3)}, data=form({}))
    body = request.read()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {request.headers['content-type']}\r\n"
    client = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=PATIENCE)
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:999])
    eventually(lambda: uploaded(server) > 0)
    return client, body[999:]


def received(client: socket.socket) -> str:
    found = b""
    while chunk := client.recv(65536):
        found += chunk
    return found.decode()


def require_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert not [record for record in caplog.records if record.exc_info or "Exception" in record.getMessage()]


def test_a_recording_that_is_uploaded_at_a_shutdown_is_transcribed(caplog: pytest.LogCaptureFixture) -> None:
    with serving(session(), LIMITS, model=MODEL) as server:
        client, rest = half_sent(server)
        with client:
            drain(server)
            assert post(server).status_code == 503 and not server.ended
            client.sendall(rest)
            assert "200 OK" in (answer := received(client)) and '"text"' in answer
        eventually(lambda: server.ended == [None])
    require_no_traceback(caplog)


def test_a_recording_that_is_opened_at_a_shutdown_is_transcribed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Opening(monkeypatch)
    with serving(session(), LIMITS, model=MODEL) as server, ThreadPoolExecutor(1) as pool:
        found = pool.submit(post, server, 3)
        opening.has_begun.wait(PATIENCE)
        assert server.service.admitted == 1  # it counts in the queue
        drain(server)
        assert not server.ended
        opening.may_end.set()
        assert found.result().json()["text"] == alone(3).text.strip()
        eventually(lambda: server.ended == [None])
    require_no_traceback(caplog)


@pytest.mark.parametrize("stage", ["uploaded", "opened"])
def test_a_recording_that_is_not_ready_in_the_grace_period_gets_an_error(
    stage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Opening(monkeypatch)
    limits = replace(LIMITS, grace=0.05)
    with serving(session(), limits, model=MODEL) as server, ThreadPoolExecutor(1) as pool:
        if stage == "opened":
            response = pool.submit(post, server, 3)
            opening.has_begun.wait(PATIENCE)
            drain(server)
            answer = f"{response.result().status_code} {response.result().text}"
        else:
            client, _ = half_sent(server)
            with client:
                drain(server)
                answer = received(client)
        assert "503 " in answer and '"code":"stopping"' in answer, answer
        eventually(lambda: server.ended == [None])
        assert server.service.admitted == uploaded(server) == 0
    require_no_traceback(caplog)


def test_a_full_queue_refuses_a_recording_before_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Opening(monkeypatch)
    few = replace(LIMITS, slots=1, queue=1, max_prompts=1)
    with serving(session(), few, model=MODEL) as server, ThreadPoolExecutor(2) as pool:
        found = [pool.submit(post, server, 3) for _ in range(2)]
        eventually(lambda: server.service.admitted == 2)
        assert post(server).status_code == 429
        opening.may_end.set()
        assert {each.result().status_code for each in found} == {200}


def test_a_client_that_leaves_while_its_recording_is_opened_ends_the_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Opening(monkeypatch)
    with serving(session(), LIMITS, model=MODEL) as server:
        client, rest = half_sent(server)
        client.sendall(rest)
        opening.has_begun.wait(PATIENCE)
        client.close()
        eventually(lambda: server.service.admitted == uploaded(server) == 0)
        eventually(lambda: not server.thread.reading._turns.items)


def test_the_memory_of_a_recording_is_free_when_its_request_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its error or its result is part of a cycle, which Python collects at some later time."""
    held: list[weakref.ref[AudioBytes]] = []

    def recorded(content: bytes, name: str) -> AudioBytes:
        source = AudioBytes(content, name)
        held.append(weakref.ref(source))
        return source

    monkeypatch.setattr(transcriptions, "AudioBytes", recorded)
    monkeypatch.setattr(service_module, "COLLECTED_BYTES", 0)
    with serving(session(), LIMITS, model=MODEL) as server:
        gc.disable()
        try:
            assert post(server, 3).status_code == post(server, 3, stream="true").status_code == 200
            assert post(server, 3, prompt="<|en|>").status_code == 400
            with server.client() as client:
                assert client.post(PATH, files={"file": ("a", b"no sound")}).status_code == 400
            assert len(held) == 4
            eventually(lambda: not any(each() for each in held[:-1]))  # the last error may be in a frame that waits
        finally:
            gc.enable()


def test_a_damaged_recording_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end cannot be read, after the first block."""

    def fails(*args: Any) -> Iterator[None]:
        read = yield from opening(*args)
        if read.num_frames == 160:
            raise InputError("file: planted")
        return read

    opening = transcriptions.opening
    monkeypatch.setattr(transcriptions, "opening", fails)
    with serving(session(), LIMITS, model=MODEL) as server:
        failed = post(server, 0)
        assert failed.status_code == 400 and failed.json()["error"]["message"] == "file: planted"
        assert post(server, 1).json()["text"] == alone(1).text.strip()
        assert server.service.admitted == 0 and server.thread.waiting == 0


def test_a_request_that_cannot_be_submitted_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder_prompt = WindowRequests.decoder_prompt

    def fails(self: WindowRequests, attempt: Any) -> Any:
        if self.language == "de":
            raise InputError("prompt: planted")
        return decoder_prompt(self, attempt)

    monkeypatch.setattr(WindowRequests, "decoder_prompt", fails)
    with serving(session(), LIMITS, model=MODEL) as server:
        failed = post(server, 0, language="de")
        assert failed.status_code == 400 and "planted" in failed.text
        assert post(server, 1, language="en").status_code == 200 and not server.ended


def test_without_the_folder_speech_there_are_no_paths_for_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speculative_decoding.server.app.has_room", lambda name: name != "speech")
    text = Session(tiny_model(), TextLetters(), options=GenerationOptions(drafter="none", max_tokens=2))
    with serving(text) as server:
        answers = [server.post(f"/v1/audio/{path}") for path in ("transcriptions", "translations", "nothing")]
        assert [each.status_code for each in answers] == [404] * 3
        assert answers[0].json() == answers[1].json() == answers[2].json()
        assert "/v1/audio" not in answers[0].text and server.post(prompt="abc").status_code == 200


def test_without_the_folder_speech_a_speech_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speculative_decoding.rooms.has_room", lambda name: name != "speech")
    with pytest.raises(AssertionError, match="needs the folder speculative_decoding/speech"), serving(session()):
        pass
