"""Tests recordings with OpenAI's client. Each transcript equals that of a session."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.service import MAX_UPLOADS
from speculative_decoding.server.transcription_format import ClientRecording
from speculative_decoding.speech import voice
from speculative_decoding.speech.audio_file import AudioFile
from speculative_decoding.speech.formats import srt
from speculative_decoding.speech.scheduler import TranscriptionEvent
from speculative_decoding.speech.transcription import Transcription
from tests.support.serving import Serving, drain, events, held, require_no_traceback, serving
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
LIMITS = Limits(
    slots=2,
    queue=14,
    max_audio=60_000,
    max_audio_seconds=1.7,
    max_body=20_000,
    max_prompt_tokens=50,
    max_draft_text=500,
)
PATH = "/v1/audio/transcriptions"
FIRST: dict[str, Any] = {  # keep the first text of each window
    "no_speech_threshold": None,
    "logprob_threshold": None,
    "compression_ratio_threshold": None,
    "sample_len": 12,
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


@cache
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
    """Return the size of all recordings in memory."""
    return sum(upload.size for upload in server.service._uploads)


def test_text_equals_the_sessions(client: openai.OpenAI) -> None:
    found, expected = create(client), alone(0)
    assert found.text == expected.text.strip() != ""
    assert (found.usage.type, found.usage.seconds) == ("duration", expected.seconds)


@pytest.mark.parametrize(("name", "media_type"), [("text", "text/plain"), ("srt", "application/x-subrip")])
def test_formats_are_those_of_the_command_line(server: Serving, name: str, media_type: str) -> None:
    expected = alone(0)
    found = post(server, response_format=name)
    assert found.headers["content-type"].startswith(media_type)
    assert found.text == (expected.text.strip() + "\n" if name == "text" else "".join(srt(expected.segments)))


@pytest.mark.parametrize("granularities", [["segment"], ["word"], ["word", "segment"]])
def test_verbose_json_has_the_fields_of_openai(client: openai.OpenAI, granularities: Any) -> None:
    found = create(client, response_format="verbose_json", language="de", timestamp_granularities=granularities)
    expected = alone(0, language="de", word_timestamps="word" in granularities)
    assert (found.text, found.language, found.duration) == (expected.text.strip(), "german", expected.seconds)
    assert found.task == "transcribe"  # type: ignore[attr-defined]
    segments = None if granularities == ["word"] else [(each.seek, each.start, each.end) for each in expected.segments]
    assert segments == (found.segments and [(each.seek, each.start, each.end) for each in found.segments])
    if segments:
        assert [each.tokens for each in found.segments] == [each.tokens for each in expected.segments]
        assert found.segments[0].avg_logprob == pytest.approx(expected.segments[0].avg_logprob, abs=1e-4)
    words = [(word.word.strip(), word.start, word.end) for each in expected.segments for word in each.words or ()]
    assert words == [(each.word, each.start, each.end) for each in found.words or ()]
    assert bool(words) == ("word" in granularities)


@pytest.mark.parametrize("name", ["DE", "german", "German", "<|de|>"])
def test_a_language_may_be_named(server: Serving, name: str) -> None:
    """The name in `verbose_json` is therefore also accepted."""
    found = post(server, language=name, response_format="verbose_json").json()
    assert found["language"] == "german"
    assert found["text"] == post(server, language="de", response_format="verbose_json").json()["text"]


def test_translations_and_options(client: openai.OpenAI) -> None:
    found = client.audio.translations.create(
        model=MODEL, file=file(2), prompt="ab", response_format="verbose_json", extra_body=form({})
    )
    expected = alone(2, task="translate", initial_prompt="ab")
    assert (found.text, found.language) == (expected.text.strip(), "english")  # OpenAI's types require both
    assert found.text != create(client, 2).text and found.model_dump()["task"] == "translate"
    options: Any = {"temperature": 0.9, "seed": 7, "sample_len": 9, "without_timestamps": True}
    assert create(client, 2, **options).text == alone(2, **options).text.strip() != create(client, 2).text


def test_voice_detection_puts_times_back_and_counts_what_it_leaves_out(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voice, "silero", lambda: lambda chunk: float(np.abs(chunk).max() > 0.001))
    own = {"vad": True, "vad_speech_pad_ms": 0, "vad_min_silence_duration_ms": 100}
    silence = np.zeros(16 * 512, np.float32)
    spoken = np.concatenate([silence, RECORDINGS[1], silence])
    fields = form({"response_format": "verbose_json", **own})
    with server.client() as client:
        found = client.post(PATH, files={"file": ("a.wav", wav(spoken))}, data=fields).json()
        refused = client.post(PATH, files={"file": ("a.wav", wav(np.zeros(28_000, np.float32)))}, data=fields)
    expected = session("none").transcribe(spoken, **FIRST, **own)
    assert (found["text"], found["duration"]) == (expected.text.strip(), expected.seconds)
    assert [each["start"] for each in found["segments"]] == [each.start for each in expected.segments]
    assert found["segments"][0]["start"] >= 0.51
    assert refused.status_code == 400 and "longer than 1.7 seconds" in refused.text


def test_a_stream_sends_each_segment(client: openai.OpenAI) -> None:
    expected = alone(0)
    found = [*create(client, stream=True)]
    deltas = [each.delta for each in found if each.type == "transcript.text.delta"]
    assert len(deltas) > 1 and "".join(deltas).strip() == found[-1].text == expected.text.strip()
    assert found[-1].type == "transcript.text.done"


def test_rounds_say_which_text_was_drafted(server: Serving) -> None:
    expected = session().transcribe(RECORDINGS[0], **FIRST)
    sent = {"files": {"file": file(0)}, "data": form({"stream": "true", "rounds": "true"})}
    with server.client() as client, client.stream("POST", PATH, **sent) as response:
        *deltas, done = events(response)
    pieces = [piece for each in deltas for piece in each["pieces"]]
    letters = [(letter, piece["from_draft"]) for piece in pieces for letter in piece["text"]]
    assert letters == [  # one per token with this tokenizer
        (letter, drafted)
        for segment in expected.segments
        for token, drafted in zip(segment.tokens, segment.from_draft, strict=True)
        for letter in Letters().decode([token])
    ]
    assert {drafted for _, drafted in letters} == {False, True}
    assert "".join(each["delta"] for each in deltas).strip() == done["text"] == expected.text.strip()
    stats, usage = expected.stats, done["usage"]
    assert (usage["seconds"], usage["completion_tokens"]) == (expected.seconds, stats.generated_tokens)
    counts = stats.drafted_tokens, stats.accepted_tokens, stats.target_calls
    assert (usage["drafted_tokens"], usage["accepted_tokens"], usage["target_calls"]) == counts


def test_concurrent_clients_get_the_same_texts_as_one(server: Serving) -> None:
    """The clients have different languages and prompts, and some windows fall back to higher temperatures."""
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
    """If drafts copied it, all drafts for the same recording would be accepted the second time."""
    names = ("generated_tokens_total", "accepted_tokens_total")
    with serving(session("ngram"), LIMITS, model=MODEL) as server:
        post(server, 0)
        before = [server.metric(name) for name in names]
        post(server, 0)
        generated, accepted = (server.metric(name) - old for name, old in zip(names, before, strict=True))
    assert generated == before[0] > 10 and accepted < generated / 4


def test_a_draft_text_of_a_client_is_limited(server: Serving) -> None:
    answer = post(server, draft_text="a" * (LIMITS.max_draft_text + 1))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "draft_text"
    with serving(session("ngram"), LIMITS, model=MODEL) as other:
        answer = post(other, draft_text="a" * LIMITS.max_draft_text)
        assert answer.json()["text"] == alone(0).text.strip()
        for texts in (["a" * LIMITS.max_draft_text, "b"], ["a"] * 5):  # the total of repeated fields counts
            answer = post(other, draft_text=texts)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "draft_text"


def test_fields_count_in_the_limit_of_a_body_without_its_recording(server: Serving) -> None:
    """The limit applies even if the recording is small."""
    answer = post(server, 3, draft_text="a" * LIMITS.max_body)
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"
    assert f"at most {LIMITS.max_body} bytes without its recording" in answer.json()["error"]["message"]


def test_draft_texts_save_calls_and_change_no_text() -> None:
    """One of the two draft texts is wrong. Each request goes to a new server, which has no learned statistics."""
    expected = alone(0)
    calls = []
    for texts in ([], [alone(2).text, "".join(srt(expected.segments))]):
        with serving(session("ngram"), LIMITS, model=MODEL) as server:
            found = post(server, response_format="srt", draft_text=texts)
            calls.append(server.metric("target_calls_total"))
        assert found.text == "".join(srt(expected.segments))
    assert calls[1] < calls[0]


def test_whisper_1_names_the_model_that_is_served(server: Serving, client: openai.OpenAI) -> None:
    assert post(server, 3, model="whisper-1").status_code == 200
    assert client.models.retrieve("whisper-1").id == MODEL


FILES: list[tuple[bytes, int, str]] = [
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


def test_models_refuse_the_other_type_of_input(server: Serving) -> None:
    for path in ("/v1/completions", "/translate"):
        response = server.post(path, prompt="a", q="a")
        assert response.status_code == 404 and "transcribes speech" in response.text
    with serving(Session(tiny_model(), TextLetters(), options=GenerationOptions(drafter="none")), LIMITS) as other:
        response = post(other)
        assert response.status_code == 404 and "this model reads text" in response.json()["error"]["message"]


def half_sent(server: Serving) -> tuple[socket.socket, bytes]:
    """Send the first part of a recording. Returns the connection and the remaining bytes."""
    request = httpx.Request("POST", server.url + PATH, files={"file": file(3)}, data=form({}))
    body = request.read()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {request.headers['content-type']}\r\n"
    client = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=PATIENCE)
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:999])
    eventually(lambda: uploaded(server) > 0)
    return client, body[999:]


@contextmanager
def busy_readers(server: Serving) -> Iterator[threading.Event]:
    """Keep the threads that read recordings busy until an event is set."""
    may_end = threading.Event()

    def wait() -> Generator[None, None, None]:
        may_end.wait(PATIENCE)
        yield

    for name in ("one", "two"):
        server.thread.reading.run(name, wait())
    try:
        yield may_end
    finally:
        may_end.set()


@pytest.mark.parametrize("stage", ["uploaded", "opened"])
def test_a_recording_that_is_not_ready_in_the_grace_period_gets_an_error(
    stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(session(), replace(LIMITS, grace=0.0), model=MODEL) as server, busy_readers(server):
        client, rest = half_sent(server)
        with client:
            if stage == "opened":
                client.sendall(rest)
                eventually(lambda: server.service.admitted == 1)
            drain(server)
            with client.makefile() as received:
                answer = received.read()
        assert "503 " in answer and '"code":"stopping"' in answer, answer
        eventually(lambda: server.ended == [None])
        assert server.service.admitted == uploaded(server) == 0
    require_no_traceback(caplog)


def test_a_client_that_leaves_while_its_recording_is_opened_ends_the_opening(server: Serving) -> None:
    with busy_readers(server):
        client, rest = half_sent(server)
        client.sendall(rest)
        eventually(lambda: server.service.admitted == 1)
        client.close()
        eventually(lambda: server.service.admitted == uploaded(server) == 0)
        eventually(lambda: len(server.thread.reading._turns.items) == 2)  # the two busy threads


def test_a_client_that_disconnects_frees_its_slot_and_memory() -> None:
    with held(session(), LIMITS, model=MODEL) as (server, gated):
        with server.client() as client:
            sent = {"files": {"file": file(0)}, "data": form({"stream": "true"})}
            with client.stream("POST", PATH, **sent) as response:
                assert response.status_code == 200
                eventually(lambda: server.service.admitted == 1)
                assert uploaded(server) == 162 * 6 * 4  # the frames only
        gated.allow()
        eventually(lambda: server.service.admitted == server.thread.decoding == uploaded(server) == 0)
        assert server.metric("prompts_total", finish_reason="cancelled") == 1
        assert post(server, 1).json()["text"] == alone(1).text.strip()


def test_a_short_recording_passes_long_ones_and_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression test: a short recording waited for the end of a long one. Their windows must take turns."""
    # One recording falls back to several temperatures, so turns also change between outputs for the same window
    recordings: list[tuple[int, dict[str, Any]]] = [(0, {}), (0, {"logprob_threshold": -0.1, "seed": 3}), (3, {})]
    finished: list[float] = []  # durations
    add = ClientRecording.add

    def noted(item: ClientRecording, progress: TranscriptionEvent) -> None:
        add(item, progress)
        if progress.result is not None:
            finished.append(progress.seconds)

    def send(number: int) -> str:
        index, fields = recordings[number]
        return str(post(server, index, **fields).json()["text"])

    monkeypatch.setattr(ClientRecording, "add", noted)

    limits = Limits(slots=1, queue=3, max_prompts=1)
    with held(session(), limits, model=MODEL) as (server, gated), ThreadPoolExecutor(3) as pool:
        texts = [pool.submit(send, number) for number in (0, 1)]
        eventually(lambda: server.service.admitted == 2)
        texts.append(pool.submit(send, 2))
        eventually(lambda: server.service.admitted == 3)
        gated.allow()
        found = [text.result() for text in texts]
    assert finished[0] == min(finished) < finished[1]
    assert found == [alone(index, **fields).text.strip() for index, fields in recordings]


def test_no_file_stays_in_memory_when_its_request_has_ended(server: Serving) -> None:
    """No reference cycle keeps a file either, which Python would collect at an unknown later time."""
    gc.collect()
    gc.disable()
    try:
        assert post(server, 3, prompt="<|en|>").json()["error"]["param"] == "prompt"
        assert post(server, 3, stream="true").status_code == post(server, 3).status_code == 200
        eventually(lambda: not [each for each in gc.get_objects() if isinstance(each, AudioFile)])
    finally:
        gc.enable()


def test_bodies_and_frames_in_memory_are_limited() -> None:
    """A form of exactly the maximum size is refused for its prompt. With one more byte, its frames exceed the limit."""
    small = Limits(max_audio=1 << 14, max_audio_seconds=0.2, max_body=1 << 20)
    frames = 22 * 6 * 4  # frames of 0.2 seconds
    room = MAX_UPLOADS * (small.max_audio + 20 * 6 * 4) - frames
    with serving(session(), small, model=MODEL) as other, other.client() as client:
        request = httpx.Request("POST", other.url, files={"file": file(3)}, data=form({"prompt": ""}))
        for too_many, status in ((0, 400), (1, 429)):
            padding = "a" * (room + too_many - len(request.read()))
            refused = client.post(PATH, files={"file": file(3)}, data=form({"prompt": padding}))
            assert refused.status_code == status, refused.text
            eventually(lambda: uploaded(other) == other.service.admitted == 0)
        assert post(other, 3).status_code == 200
