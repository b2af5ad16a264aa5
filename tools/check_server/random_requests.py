"""Sends random request bodies and recordings to a server in this process, and checks its responses."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import mlx.core as mx

from benchmarks.server_process import wait_for
from speculative_decoding import Session
from speculative_decoding.documents.formats import FORMATS
from speculative_decoding.sampling.options import option_specs
from speculative_decoding.server.bodies import is_openai
from speculative_decoding.server.limits import Limits
from speculative_decoding.speech.options import transcription_specs
from tests.support.serving import GRAMMAR, Serving, serving
from tests.support.speech import Letters, noise, speech_model, wav
from tools.fuzz_files import mutate

LIMITS = Limits(slots=4, queue=12, max_output_tokens=100, max_seconds=120.0)
NAMES = [
    *option_specs(),
    *("prompt", "model", "n", "stream", "stream_options", "rounds", "echo", "best_of", "suffix", "user", "logit_bias"),
    *("prediction", "type", "content", "text"),
    *("presence_penalty", "q", "source", "target", "format", "api_key", "", "\u0000", "__class__", "max-tokens"),
]
VALUES: list[Callable[[random.Random], Any]] = [
    lambda rng: rng.choice([None, True, False, 0, 1, 2, -1, 3.5, 1e-10, 1e10, 1e308, -0.0]),
    lambda rng: rng.choice([2**31, 2**32 - 1, 2**63, 10**40]),
    lambda rng: rng.choice(
        ["", " ", "a", "\u0000", "\n", "\u202e", "\ufeff", "\U0001f600", "en", "de", "none", "auto"]
    ),
    lambda rng: rng.choice(["model", "ngram", "coupled", "block", "heuristic", "../../etc/passwd", "%s%n", "<b>"]),
    lambda rng: "".join(
        chr(rng.choice([rng.randrange(1, 0x250), rng.randrange(0x4E00, 0x9000)])) for _ in range(rng.randrange(60))
    ),
    lambda rng: [value(rng) for _ in range(rng.randrange(4))],
    lambda rng: {rng.choice(NAMES): value(rng) for _ in range(rng.randrange(3))},
    lambda rng: [rng.randrange(-5, 9000) for _ in range(rng.randrange(20))],
]
TEXTS = [
    *(
        "It is <b>small</b>. ",
        "# A title\n\n- `code`\n",
        "1\n00:00:01,000 --> 00:00:02,000\nA\nb\n\n",
        '{"text": "a"}\n',
    ),
    *("&amp; %s {x} 1,000 kB", "<p title='a'>", "</p></i>", "<!--", "WEBVTT\n\n", "---\n", "\r", "a" * 500, "<<<<>>>>"),
]
RECORDINGS = [wav(noise(seed, seconds)) for seed, seconds in enumerate((0.2, 0.6, 1.5))]


def tiny_speech_session() -> Session:
    model = speech_model()
    mx.eval(model.parameters())  # evaluated before the server's thread uses them
    return Session(model, Letters())


def value(rng: random.Random) -> Any:
    return rng.choice(VALUES)(rng)


def valid_fields(rng: random.Random) -> dict[str, Any]:
    """Return options that are mostly valid, with values at the limits of their ranges."""
    fields: dict[str, Any] = {
        "prompt": rng.choice([GRAMMAR, ["grammar: He go home.", "describe: a = b"], "\U0001f600 \u4e2d", "a" * 2000]),
        "max_tokens": rng.choice([1, 2, 7]),
        "temperature": rng.choice([0, 0, 1e-10, 1, 1e10]),
        "top_k": rng.choice([0, 1, 10**30]),
        "top_p": rng.choice([1, 1e-300, 0.5]),
        "min_p": rng.choice([0, 1, 0.1]),
        "repetition_penalty": rng.choice([1, 1e-10, 1e10]),
        "no_repeat_ngram_size": rng.choice([0, 1, 64]),
        "seed": rng.choice([0, 2**32 - 1]),
        "stop": rng.choice([[], ["e"], "the", ["\u0000", "a" * 256]]),
        "acceptance": rng.choice(["rejection", "block", "coupled"]),
        "num_draft_tokens": rng.choice([0, 1, 64, "auto"]),
        "decoder_prefix": rng.choice(["", "It", [5, 8], " "]),
        "draft_text": rng.choice(["", "It was a cold business.", ["a" * 20_000, " "], "\U0001f600 \u4e2d" * 99]),
        "prediction": {
            "type": "content",
            "content": rng.choice(["It was", [{"type": "text", "text": "He"}], value(rng)]),
        },
        "logprobs": rng.choice([0, True, False]),
        "stream": rng.choice([True, False]),
        "n": rng.choice([1, 1, 2]),
    }
    return {name: fields[name] for name in {"prompt", "max_tokens", *rng.sample(list(fields), rng.randrange(6))}}


def body(rng: random.Random) -> bytes:
    """Return fields with random changes as JSON; some bodies are truncated or contain random bytes."""
    fields = valid_fields(rng) if rng.random() < 0.7 else {"prompt": GRAMMAR, "max_tokens": 3}
    for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
        fields[rng.choice(NAMES)] = value(rng)
    content = json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode()
    kind = rng.random()
    if kind < 0.1:
        return content[: rng.randrange(len(content) + 1)]
    if kind < 0.2:
        return mutate(content, rng)
    return content


def prompt_request(rng: random.Random) -> tuple[str, str, bytes]:
    """Return the path, content type and body of a request with prompts, texts or a file."""
    if rng.random() < 0.3:
        return libretranslate_request(rng)
    kinds = ["application/json"] * 12 + ["application/x-www-form-urlencoded", "text/plain", "", "a/b; c"]
    return rng.choice(["/v1/completions"] * 5 + ["/translate"]), rng.choice(kinds), body(rng)


def libretranslate_request(rng: random.Random) -> tuple[str, str, bytes]:
    """Return the path, content type and body of a request to LibreTranslate's API. Some bodies are damaged."""
    text = rng.choice(["The end.", *TEXTS]) + "".join(rng.choice(TEXTS) for _ in range(rng.randrange(4)))
    fields: dict[str, Any] = {
        "q": rng.choice([text, [text, "", text]]),
        "source": rng.choice(["en", "en", "auto", "xx"]),
        "target": rng.choice(["de", "de", "German", "xx"]),
        "format": rng.choice(["text", "html", "html", ""]),
        "alternatives": rng.choice([0, "", 1]),
    }
    path = rng.choice(["/translate", "/translate", "/translate_file", "/detect"])
    if path == "/detect":
        fields = {"q": text}
    if path == "/translate_file":
        fields = {name: fields[name] for name in ("source", "target")} | {"format": rng.choice([*FORMATS, "", "xx"])}
    if rng.random() < 0.2:
        fields[rng.choice(NAMES)] = str(value(rng))
    sent: dict[str, Any] = {"json": fields} if path != "/translate_file" and rng.random() < 0.6 else {"data": fields}
    if path == "/translate_file" or rng.random() < 0.1:
        content = text.encode() if rng.random() < 0.8 else mutate(text.encode(), rng)
        names = ["a.html", "a.md", "a.srt", "../../a", "", "a.docx", "\U0001f600.txt", 'a"\r\n.vtt']
        sent = {"data": fields, "files": {"file": (rng.choice(names), content)}}
    request = httpx.Request("POST", "http://localhost", **sent)
    content = request.read()
    return path, request.headers["content-type"], mutate(content, rng) if rng.random() < 0.1 else content


def audio_request(rng: random.Random) -> tuple[str, str, bytes]:
    """Return the path, content type and body of a request with a recording. Some bodies are damaged."""
    recording = rng.choice(RECORDINGS)
    if rng.random() < 0.3:
        recording = mutate(recording, rng)
    fields = {
        "language": rng.choice(["en", "de", "de", "xx"]),
        "prompt": rng.choice(["ab", "", "a" * 2000]),
        "response_format": rng.choice(["json", "text", "srt", "vtt", "verbose_json"]),
        "timestamp_granularities[]": rng.choice(["word", "segment"]),
        "stream": rng.choice(["true", "false"]),
        "temperature": rng.choice(["0", "1", "1e10", "[0, 0.5]"]),
        "sample_len": rng.choice(["1", "3"]),
        "num_draft_tokens": rng.choice(["0", "3", "auto"]),
    }
    chosen: dict[str, Any] = {"sample_len": "9"} | {
        name: fields[name] for name in rng.sample(list(fields), rng.randrange(5))
    }
    for _ in range(rng.choice([0, 0, 0, 0, 1, 2])):
        chosen[rng.choice([*NAMES, *transcription_specs(), "file"])] = str(value(rng))
    names = ["talk.wav", "", "\U0001f600.mp3", "../../a"]
    files = {rng.choice(["file"] * 19 + ["audio"]): (rng.choice(names), recording)}
    request = httpx.Request("POST", "http://localhost", data=chosen, files=files)
    content = request.read()
    if rng.random() < 0.2:
        content = mutate(content, rng)
    path = rng.choice(["/v1/audio/transcriptions", "/v1/audio/translations"])
    kinds = [request.headers["content-type"]] * 19 + ["multipart/form-data", "application/json"]
    return path, rng.choice(kinds), content


def fuzz(
    server: Serving,
    count: int,
    seed: int,
    random_request: Callable[[random.Random], tuple[str, str, bytes]] = prompt_request,
) -> Counter[int]:
    """Send random requests, and count the statuses. Raises AssertionError with the body of an invalid response."""
    rng = random.Random(seed)
    statuses: Counter[int] = Counter()
    with server.client() as client:
        for _ in range(count):
            path, kind, content = random_request(rng)
            try:
                response = client.post(path, content=content, headers={"Content-Type": kind})
            except httpx.TransportError as error:
                raise AssertionError(f"no answer to {content!r} as {kind} at {path}") from error
            statuses[response.status_code] += 1
            check(response, path, content)
    return statuses


def check(response: httpx.Response, path: str, content: bytes) -> None:
    details = (response.status_code, response.text[:2000], content)
    assert response.status_code < 500 and "Traceback" not in response.text, details
    if response.status_code != 200:
        error = response.json()["error"]
        message = error["message"] if is_openai(path) else error
        assert message and message.isprintable() and "speculative_decoding/" not in message, details
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n"), details


def run(count: int, seed: int, *, audio: bool = False) -> Iterator[str]:
    """Send random requests with prompts to the bundled model, or with recordings to a tiny Whisper."""
    with serving(tiny_speech_session() if audio else None, LIMITS) as server:
        statuses = fuzz(server, count, seed, audio_request if audio else prompt_request)
        wait_for(lambda: server.metric("slots_busy") == 0)
        assert server.service.admitted == 0
    yield f"{count} requests: " + ", ".join(f"{number} times {status}" for status, number in sorted(statuses.items()))
