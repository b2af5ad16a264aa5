"""The web page of the server in a headless Chromium, with a microphone that plays a file.

Run as a program with an argument FILE to save a screenshot.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculative_decoding import GenerationOptions, Session
from speculative_decoding.server.limits import Limits
from tests.support.pages import (
    PHONE,
    choose_and_change,
    drop,
    needs_chromium,
    opened,
    press,
    require_fit,
    require_labels,
    shown,
    started,
    wait,
)
from tests.support.serving import Serving, bundled, held, serving
from tests.support.speech import Letters, noise, speech_model, wav
from tests.support.tiny import noisy_copy
from tests.support.waiting import eventually

PROMPT = "translate English to German: This function removes the last element of an array."
TOKEN = "correct-horse=battery/(100%)"  # with characters that are invalid in a subprotocol
RECORDING = noise(0, 0.9)
PITCH = 1000.0  # Hz
NAMED = "speech.example"  # a host name that is not a secure context over http

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("microphone") / "beeps.wav"
    seconds = np.arange(16_000) / 16_000
    file.write_bytes(wav((0.5 * np.sin(2 * np.pi * PITCH * seconds) * (seconds % 0.5 < 0.2)).astype(np.float32)))
    microphone = "--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={file}"
    with started(*microphone, f"--host-resolver-rules=MAP {NAMED} 127.0.0.1") as found:
        yield found


@cache
def speech_session() -> Session:
    target = speech_model()
    draft = noisy_copy(target)
    draft.audio = target.audio
    return Session(target, Letters(), draft, GenerationOptions(drafter="model", num_draft_tokens=3))


@pytest.fixture(scope="module")
def speech() -> Iterator[Serving]:
    with serving(speech_session(), hosts=[NAMED]) as server:
        yield server


def test_typing_streaming_highlights_keys_and_errors(browser: Any) -> None:
    alone = bundled.__wrapped__().generate(PROMPT).text
    with serving() as server:
        page, messages = opened(browser, server)
        page.check("[value=prompt]")
        page.fill("#prompt", PROMPT)
        page.keyboard.press("Control+Enter")
        shown(page, "summary", "tokens per target call")
        spans = page.eval_on_selector_all("#output > *", "all => all.map(each => [each.className, each.textContent])")
        assert "".join(text for class_name, text in spans if class_name != "rejected") == alone
        assert {"accepted", "target"} <= {class_name for class_name, _ in spans}
        page.check("#compare")
        page.click("#start")
        shown(page, "comparison", "(medians of 3 repeats)")
        assert re.search(r"speedup \d+\.\d\dx", page.text_content("#comparison"))
        assert (
            server.metric("prompts_total", finish_reason="stop") == 1 + 2 + 2 * 3
        )  # one generation alone, and 4 pairs
        assert page.text_content("#baseline") == alone
        assert page.eval_on_selector_all("#baseline > :not(.target)", "all => all.length") == 0
        assert not messages  # no blocked resource and no failed script
        page.fill("#prompt", "   ")
        page.click("#start")
        shown(page, "problem", "prompt: is empty")
        require_labels(page)
        page.set_viewport_size({"width": 320, "height": 600})
        assert page.evaluate("document.documentElement.scrollWidth <= 320")
        page.focus("#prompt")
        assert press(page, "Tab") == "max-tokens"


@pytest.mark.slow
def test_the_page_asks_for_a_token(browser: Any) -> None:
    with serving(token=TOKEN) as server:
        page, _ = opened(browser, server, color_scheme="dark")
        page.check("[value=prompt]")
        page.click("#start")
        page.wait_for_selector("#token:visible")
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        shown(page, "summary", "tokens per target call")
        assert page.text_content("#problem") == ""


def colors(page: Any) -> list[tuple[str, bool]]:
    """Return each letter of the output, and whether its color is that of accepted draft tokens."""
    spans = page.eval_on_selector_all("#output > *", "all => all.map(each => [each.className, each.textContent])")
    return [(letter, class_name == "accepted") for class_name, text in spans for letter in text]


@cache
def drafted_letters() -> list[tuple[str, bool]]:
    return [
        (letter, drafted)
        for segment in speech_session().transcribe(RECORDING).segments
        for token, drafted in zip(segment.tokens, segment.from_draft, strict=True)
        for letter in Letters().decode([token])
    ]


def test_a_file_is_transcribed_by_keyboard_alone(browser: Any, speech: Serving, tmp_path: Path) -> None:
    file = tmp_path / "talk.wav"
    file.write_bytes(wav(RECORDING))
    page, messages = opened(browser, speech, **PHONE)
    choosers = list[Any]()
    page.on("filechooser", lambda chooser: choosers.append(chooser))
    assert press(page, "Tab") == "file"
    require_fit(page)
    page.keyboard.press("Enter")
    wait(page, lambda: len(choosers) == 1)
    choosers[0].set_files(file)
    assert press(page, "Tab", "Enter") == "stop"
    shown(page, "summary", "0.9 s of audio:")
    assert press(page) == "transcribe"
    assert colors(page) == drafted_letters() and {drafted for _, drafted in colors(page)} == {False, True}
    assert press(page, "Tab") == "record"
    require_labels(page)
    require_fit(page)
    assert not messages


@pytest.mark.slow
def test_a_dropped_file_is_transcribed_or_refused_in_one_line(browser: Any, speech: Serving) -> None:
    page, _ = opened(browser, speech)
    drop(page, b"not audio at all")
    shown(page, "problem", "file: ")
    assert page.text_content("#summary") == page.text_content("#output") == ""
    drop(page, wav(RECORDING))
    shown(page, "summary", "0.9 s of audio:")
    assert colors(page) == drafted_letters() and page.text_content("#problem") == ""


@pytest.mark.slow
def test_a_file_that_has_changed_is_not_blamed_on_the_server(browser: Any, speech: Serving, tmp_path: Path) -> None:
    page, _ = opened(browser, speech)
    choose_and_change(page, tmp_path / "talk.wav")
    page.click("#transcribe")
    shown(page, "problem", "talk.wav cannot be read, or has changed. Choose a file again.")


@pytest.mark.slow
def test_escape_stops_a_transcription(browser: Any) -> None:
    with held(speech_session(), Limits(slots=1)) as (server, gated):
        page, _ = opened(browser, server)
        drop(page, wav(RECORDING))
        eventually(lambda: server.service.admitted == 1)
        press(page, "Escape")
        shown(page, "summary", "Stopped.")
        gated.allow()
        eventually(lambda: server.service.admitted == 0)
        assert page.is_enabled("#transcribe") and not page.is_enabled("#stop")


def realtime_events(page: Any) -> tuple[list[Any], list[Any]]:
    """Return two lists, to which the events that the page sends and receives will be added."""
    sent, received = list[Any](), list[Any]()

    def listen(socket: Any) -> None:
        socket.on("framesent", lambda event: sent.append(json.loads(event)))
        socket.on("framereceived", lambda event: received.append(json.loads(event)))

    page.on("websocket", listen)
    return sent, received


def of_type(events: list[Any], end: str) -> list[Any]:
    return [event for event in events if event["type"].endswith(end)]


def test_speech_is_recorded_by_keyboard_alone(browser: Any) -> None:
    with serving(speech_session(), token=TOKEN) as server:
        page, messages = opened(browser, server, permissions=["microphone"], **PHONE)
        sent, received = realtime_events(page)
        assert press(page, "Tab", "Tab", "Tab") == "record"
        page.keyboard.press("Enter")
        shown(page, "problem", "token")
        assert press(page) == "token"
        messages.clear()  # the status 401
        page.keyboard.type(TOKEN)
        assert press(page, "Tab", "Tab", "Enter") == "stop"
        shown(page, "summary", "Recording...")
        wait(page, lambda: len(of_type(sent, ".append")) >= 30 and bool(of_type(received, ".delta")))
        require_fit(page)
        press(page, "Escape")
        shown(page, "summary", "Recorded.")
        assert press(page) == "record"
    assert [event["type"] for event in sent if event not in of_type(sent, ".append")] == [
        "session.update",
        "input_audio_buffer.commit",
    ]
    assert sent[-1]["type"].endswith(".commit") and not messages
    pieces = [piece for event in of_type(received, ".delta") for piece in event["pieces"]]
    assert colors(page) == [(letter, piece["from_draft"]) for piece in pieces for letter in piece["text"]]
    (completed,) = of_type(received, ".completed")
    assert page.text_content("#output") == completed["transcript"]
    pcm = b"".join(base64.b64decode(event["audio"]) for event in of_type(sent, ".append"))
    spectrum = np.abs(np.fft.rfft(np.frombuffer(pcm, "<i2")))
    assert abs(np.argmax(spectrum) * 24_000 / (len(pcm) // 2) - PITCH) < 10


def scripted(socket: Any) -> None:
    """Answer the events of a page. A commit is answered with an error."""

    def heard(text: str, pending: str) -> None:
        pieces = [{"text": text, "from_draft": True}]
        event = {"type": "conversation.item.input_audio_transcription.delta", "pieces": pieces, "pending": pending}
        socket.send(json.dumps(event))

    def answer(message: str) -> None:
        if json.loads(message)["type"] == "session.update":
            heard(" And", " to")
            heard(" so", " my fell")
        elif json.loads(message)["type"] == "input_audio_buffer.commit":
            socket.send(json.dumps({"type": "error", "error": {"message": "planted"}}))

    socket.on_message(answer)


def test_text_that_may_change_is_replaced_and_errors_of_a_socket_are_shown(browser: Any, speech: Serving) -> None:
    page, messages = opened(browser, speech, permissions=["microphone"])
    page.route_web_socket(re.compile("/v1/realtime"), scripted)
    page.click("#record")
    shown(page, "output", "fell")
    spans = page.eval_on_selector_all("#output > *", "all => all.map(each => [each.className, each.textContent])")
    assert spans == [["accepted", "And"], ["accepted", " so"], ["pending", " my fell"]]
    page.click("#stop")
    shown(page, "problem", "planted")
    assert page.text_content("#summary") == "" and page.is_enabled("#record") and not messages


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "is_enabled", "element", "words"),
    [(NAMED, False, "record-hint", "over https or on localhost"), ("127.0.0.1", True, "problem", "denied access")],
)
def test_a_page_without_a_microphone_says_why(
    browser: Any, speech: Serving, host: str, is_enabled: bool, element: str, words: str
) -> None:
    page, _ = opened(browser, speech, speech.url.replace("127.0.0.1", host))
    assert page.is_enabled("#record") == is_enabled
    if is_enabled:
        page.click("#record")
    shown(page, element, words)
    assert page.is_enabled("#record") == is_enabled and page.is_enabled("#transcribe")


if __name__ == "__main__":
    with started() as browser, serving() as server:
        page, _ = opened(browser, server)
        page.check("[value=prompt]")
        page.fill("#prompt", PROMPT)
        page.check("#compare")
        for _ in range(3):  # the first runs learn the acceptance rates of copies
            page.click("#start")
            page.wait_for_selector("#start:enabled")
        page.screenshot(path=sys.argv[1])
