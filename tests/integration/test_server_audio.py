"""Recordings sent to the server with OpenAI's client. Each transcript equals the session's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.server import service as service_module
from speculative_decoding.server.limits import Limits
from speculative_decoding.speech.formats import STREAMED
from speculative_decoding.speech.transcription import Transcription
from tests.support.serving import Serving, eventually, serving
from tests.support.speech import Letters, noise, speech_model, wav
from tests.support.tiny import noisy_copy, tiny_model
from tests.support.together import Letters as TextLetters

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
    options = GenerationOptions(drafter=drafter, num_draft_tokens=3, acceptance="coupled", temperature=1)
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
    ({"response_format": "diarized_json"}, "response_format", "one of json, text, srt, verbose_json, vtt"),
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
    ({"num_beams": "2"}, "num_beams", "there is no field"),
    ({"stop": "a"}, "stop", "no option 'stop'"),
    ({"hallucination_silence_threshold": "1"}, "hallucination_silence_threshold", "word_timestamps"),
    ({"prompt": "x" * 4000}, "prompt", "4000 characters"),
    ({"prompt": "<|en|>"}, "prompt", "special token"),
    ({"language": ["de", "en"]}, "language", "given twice"),
    ({"colour": "red"}, "colour", "there is no field"),
]


@pytest.mark.parametrize(("fields", "param", "words"), INVALID, ids=lambda value: str(value)[:40])
def test_invalid_fields_are_named_in_one_line(server: Serving, fields: Any, param: str, words: str) -> None:
    response = post(server, 3, **fields)
    error = response.json()["error"]
    assert response.status_code == (404 if param == "model" else 400), error
    assert error["param"] == param and words in error["message"] and "\n" not in error["message"], error
    assert server.service._uploaded == 0


FILES: list[tuple[bytes, int, str]] = [
    (b"", 400, "file: "),
    (b"not audio at all", 400, "file: "),
    (wav(np.zeros(0, np.float32)), 400, "file: no sound"),
    (wav(noise(0, 1.72)), 400, "file: longer than 1.7 seconds"),
    (b"\0" * 60_001, 413, "file must have at most 60000 bytes"),
    (b"\0" * 90_000, 413, "the body must have at most 80000 bytes"),
]


@pytest.mark.parametrize(("content", "status", "words"), FILES, ids=lambda value: str(value)[:12])
def test_unsuitable_files_are_refused_in_one_line(server: Serving, content: bytes, status: int, words: str) -> None:
    with server.client() as client:
        response = client.post(PATH, files={"file": ("../x.wav", content)})
    error = response.json()["error"]["message"]
    assert response.status_code == status and words in error and "\n" not in error and "x.wav" not in error, error
    assert server.service._uploaded == 0


FORM = 'multipart/form-data; boundary="b"'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
BODIES: list[tuple[str, bytes, int, str]] = [
    ("application/json", b"{}", 415, "multipart/form-data"),
    ("multipart/form-data", b"", 400, "no boundary"),
    (FORM, b"", 400, "its end is missing"),
    (FORM, FILE + b"abc\r\n", 400, "its end is missing"),
    (FORM, b"--b\r\nabc\r\n--b--", 400, "no content"),
    (FORM, b"--bx\r\n\r\nabc\r\n--b--", 400, "no content"),
    (FORM, b"--b\r\nA: b\r\n\r\nabc\r\n--b--", 400, "no name"),
    (FORM, b'--b\r\nContent-Disposition: form-data; name="\xff"\r\n\r\na\r\n--b--', 400, "not UTF-8"),
    (FORM, b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n\xff\r\n--b--', 400, "prompt is not UTF-8"),
    (FORM, b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\na\r\n--b--', 400, "file must be a file"),
    (FORM, FILE.replace(b'"file"', b'"prompt"') + b"a\r\n--b--", 400, "prompt must not be a file"),
    (FORM, FILE + b"a\r\n" + FILE + b"a\r\n--b--", 400, "file is given twice"),
    (FORM, (FILE + b"a\r\n") * 102 + b"--b--", 400, "over 100 fields"),
    (FORM, b"--b--", 400, "file is missing"),
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
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0 and server.service._uploaded == 0
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


def test_a_client_that_disconnects_frees_its_slot_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    own = session()
    engine = own.engine
    may_step = threading.Event()
    may_step.set()  # for the warm-up

    def gated(*args: Any) -> Any:
        made = engine(*args)
        step = made.step
        made.step = lambda: (may_step.wait(), step())[1]  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(own, "engine", gated)
    with serving(own, LIMITS, model=MODEL) as server:
        may_step.clear()
        with server.client() as client:
            sent = {"files": {"file": file(0)}, "data": form({"stream": "true"})}
            with client.stream("POST", PATH, **sent) as response:
                assert response.status_code == 200
                eventually(lambda: server.thread.waiting + server.service.admitted == 1)
                assert server.service._uploaded > 50_000
        may_step.set()
        eventually(lambda: server.service.admitted == server.thread.decoding == server.service._uploaded == 0)
        assert server.metric("prompts_total", finish_reason="cancelled") == 1
        assert post(server, 1).json()["text"] == alone(1).text.strip()


def test_a_late_recording_answers_504_and_a_stream_ends_with_the_error() -> None:
    late = Limits(slots=1, queue=2, max_prompts=1, max_seconds=1e-6)
    with serving(session(), late, model=MODEL) as server:
        assert post(server).status_code == 504 == post(server, stream="true").status_code
        assert server.service._uploaded == 0 == server.service.admitted
