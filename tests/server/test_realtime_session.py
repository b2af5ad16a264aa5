"""Tests the events of live speech, with simulated streams."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.server import realtime_session
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.model_names import ModelNames
from speculative_decoding.server.realtime_format import INPUT_FIELDS, MAX_EVENT, RATE
from speculative_decoding.server.realtime_session import RealtimeSession
from speculative_decoding.speech.live.update import LiveUpdate, Piece
from tests.support.speech import speech_model

AUDIO = speech_model().audio
LIMITS = Limits(max_prompt_tokens=10)
INPUT = "session.audio.input"
TRANSCRIPTION = f"{INPUT}.transcription"
SECOND = b"\0\1" * 24_000
FULL = ServerError(429, "no slot", code="too_many_streams")
SLOW = ServerError(429, "audio: too much", "audio", "too_much_audio")


class Stream:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.pcm = b""
        self.state = "open"

    def finish(self) -> None:
        assert self.state == "open"
        self.state = "finished"


class Client:
    """The session and streams of a client. If a test sets `refused` or `slow`, the next call fails."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.streams: list[Stream] = []
        self.refused: ServerError | None = None
        self.slow: ServerError | None = None
        assert AUDIO is not None
        self.session = RealtimeSession(self, ModelNames("tiny", ["alias"]), AUDIO, LIMITS, self.events.append)

    def open(self, options: Mapping[str, Any]) -> Stream:
        if self.refused is not None:
            raise self.refused
        self.streams.append(Stream(options))
        return self.streams[-1]

    def append(self, stream: Stream, pcm: bytes) -> None:
        assert stream.state == "open"
        if self.slow is not None:
            raise self.slow
        stream.pcm += pcm

    def cancel(self, stream: Stream) -> None:
        stream.state = "cancelled"

    def send(self, event_type: str, **fields: Any) -> list[dict[str, Any]]:
        """Send an event, and return the events that the session sends in response."""
        before = len(self.events)
        self.session.receive(json.dumps({"type": event_type, **fields}))
        return self.events[before:]

    def update(self, **session: Any) -> list[dict[str, Any]]:
        return self.send("session.update", session={"type": "transcription", **session})

    def say(self, pcm: bytes = SECOND, **fields: Any) -> list[dict[str, Any]]:
        return self.send("input_audio_buffer.append", audio=base64.b64encode(pcm).decode(), **fields)

    def commit(self) -> list[dict[str, Any]]:
        return self.send("input_audio_buffer.commit")

    def hear(self, final: str = "", pending: str = "", *, stream: int = -1, last: bool = False) -> list[dict[str, Any]]:
        before = len(self.events)
        pieces = (Piece(final[:3], True), Piece(final[3:], False)) if final else ()
        update = LiveUpdate(final, pending, 1.0, GenerationStats(), is_last=last, pieces=pieces)
        self.session.on_update(self.streams[stream], update)
        return self.events[before:]


def event_types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("conversation.item.input_audio_transcription.") for event in events]


def test_an_update_changes_the_fields_that_it_has() -> None:
    client = Client()
    client.session.begin()
    session = client.events[0]["session"]
    own = session["audio"]["input"]
    assert own["transcription"] == {"model": "tiny", "language": None, "prompt": None}
    everything = {
        "format": {"type": "audio/pcm", "rate": 24000},
        "transcription": {"model": "alias", "language": "de", "prompt": "Fritz"},
        "turn_detection": None,
        "noise_reduction": None,
    }
    client.update(audio={"input": everything}, include=[], hypotheses=True)
    assert client.update()[0]["session"]["audio"]["input"]["transcription"]["prompt"] == "Fritz"
    (event,) = client.update(audio={"input": {"transcription": {"prompt": "", "delay": None}}})
    own["transcription"] = {"model": "tiny", "language": "de", "prompt": None}
    assert event["session"] == session | {"hypotheses": True}
    client.say()
    assert client.streams[0].options == {"language": "de"}


BAD_SESSIONS: list[tuple[Any, str, str]] = [
    (5, "session", "invalid_value"),
    ({"type": "realtime"}, "session.type", "unsupported_value"),
    ({}, "session.type", "missing_field"),
    ({"voice": "x"}, "session.voice", "unknown_field"),
    ({"include": ["item.input_audio_transcription.logprobs"]}, "session.include", "unsupported_value"),
    ({"hypotheses": 1}, "session.hypotheses", "invalid_value"),
    ({"audio": {"input": []}}, INPUT, "invalid_value"),
    ({"audio": {"output": {}}}, "session.audio.output", "unknown_field"),
    ({"audio": {"input": {"format": {"type": "audio/pcmu"}}}}, f"{INPUT}.format.type", "unsupported_value"),
    (
        {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}},
        f"{INPUT}.format.rate",
        "unsupported_value",
    ),
    ({"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}, f"{INPUT}.turn_detection", "unsupported_value"),
    ({"audio": {"input": {"noise_reduction": {}}}}, f"{INPUT}.noise_reduction", "unsupported_value"),
    ({"audio": {"input": {"transcription": {"model": "gpt"}}}}, f"{TRANSCRIPTION}.model", "model_not_found"),
    ({"audio": {"input": {"transcription": {"language": "xx"}}}}, f"{TRANSCRIPTION}.language", "invalid_value"),
    ({"audio": {"input": {"transcription": {"language": 5}}}}, f"{TRANSCRIPTION}.language", "invalid_value"),
    ({"audio": {"input": {"transcription": {"prompt": "a" * 9999}}}}, f"{TRANSCRIPTION}.prompt", ""),
    ({"audio": {"input": {"transcription": {"keywords": ["a"]}}}}, f"{TRANSCRIPTION}.keywords", "unsupported_value"),
]


@pytest.mark.parametrize(("session", "param", "code"), BAD_SESSIONS)
def test_an_update_that_cannot_be_used_changes_nothing(session: Any, param: str, code: str) -> None:
    client = Client()
    before = client.update()[0]["session"]
    if isinstance(session, dict) and session and "type" not in session:
        session = {"type": "transcription", "hypotheses": True, **session}
    (event,) = client.send("session.update", session=session, event_id="mine")
    error = event["error"]
    assert (event["type"], error["event_id"], error["param"], error["code"] or "") == ("error", "mine", param, code)
    assert error["message"].startswith(param) and "\n" not in error["message"]
    assert client.update()[0]["session"] == before


BAD_EVENTS = [
    ("", None, "invalid_json"),
    ("[]", None, "invalid_json"),
    ('{"type": "a", "type": "a"}', None, "invalid_json"),
    ("[" * 60_000, None, "invalid_json"),
    ('{"type": "\\ud800"}', None, "invalid_json"),
    ('{"type": 5}', "type", "unknown_event"),
    ('{"type": "response.create"}', "type", "unknown_event"),
    ('{"type": "transcription_session.update", "session": {}}', "type", "unknown_event"),
    ('{"type": "input_audio_buffer.append"}', "audio", "missing_field"),
    ('{"type": "input_audio_buffer.append", "audio": 5}', "audio", "invalid_value"),
    ('{"type": "input_audio_buffer.append", "audio": "AAA"}', "audio", "invalid_value"),
    ('{"type": "input_audio_buffer.append", "audio": "AA=="}', "audio", "invalid_value"),
    ('{"type": "input_audio_buffer.append", "audio": "é"}', "audio", "invalid_value"),
    ('{"type": "input_audio_buffer.commit", "item": 1}', "item", "unknown_field"),
    ('{"type": "input_audio_buffer.clear", "event_id": 5}', "event_id", "invalid_value"),
]


WIDE = ",".join(f'"k{i}":0' for i in range(MAX_EVENT // 8))
BASE64 = "AAAA" * (MAX_EVENT // 2)
# Each event has more than `MAX_EVENT` characters without its audio
LARGE_EVENTS = {
    "a wide session": f'{{"type": "session.update", "session": {{{WIDE}}}}}',
    "many fields": f'{{"type": "input_audio_buffer.commit", {WIDE}}}',
    "many fields beside audio": f'{{"type": "input_audio_buffer.append", "audio": "{BASE64}", {WIDE}}}',
    "audio twice": f'{{"type": "input_audio_buffer.append", "audio": "{BASE64}", "audio": "{BASE64}"}}',
    "a long name": f'{{"{"language" * (MAX_EVENT // 8)}": 1}}',
    "a long type": f'{{"type": "{"input_audio_buffer.append" * (MAX_EVENT // 24)}"}}',
    "a long event_id": f'{{"type": "input_audio_buffer.clear", "event_id": "{BASE64}"}}',
    "a long prompt": json.dumps({"type": "session.update", "session": {"prompt": BASE64}}),
    "many numbers": f'{{"type": "session.update", "session": [{"1," * (MAX_EVENT // 2)}1]}}',
    "a long number": f'{{"type": "session.update", "session": {"9" * MAX_EVENT}}}',
    "spaces": " " * MAX_EVENT + '{"type": "input_audio_buffer.clear"}',
    "audio that does not end": f'{{"type": "input_audio_buffer.append", "audio": "{BASE64}',
}


@pytest.mark.parametrize("text", LARGE_EVENTS.values(), ids=LARGE_EVENTS)
def test_a_large_event_is_refused_before_it_is_parsed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    monkeypatch.setattr(realtime_session, "parse_json", lambda *_: pytest.fail("parsed"))
    client.session.receive(text)
    (event,) = client.events
    assert event["error"]["code"] == "event_too_large" and len(json.dumps(event)) < 400


@pytest.mark.parametrize("escaped", ["/", "\\/"], ids=["plain", "escaped"])
@pytest.mark.parametrize("template", ['{"type": "%s", "audio": "%s"}', '{"audio" : "%s", "type": "%s"}'])
def test_audio_may_be_large(template: str, escaped: str) -> None:
    client = Client()
    audio = base64.b64encode(SECOND * 3).decode().replace("A", "/")
    values = ("input_audio_buffer.append", audio.replace("/", escaped))
    client.session.receive(template % (values if template.startswith('{"type') else values[::-1]))
    assert client.events == [] and client.streams[0].pcm == base64.b64decode(audio)


@pytest.mark.parametrize(("text", "param", "code"), BAD_EVENTS, ids=lambda value: str(value)[:50])
def test_an_event_that_cannot_be_used_is_one_error(text: str, param: str | None, code: str) -> None:
    client = Client()
    client.session.receive(text)
    (event,) = client.events
    assert (event["type"], event["error"]["param"], event["error"]["code"]) == ("error", param, code)
    assert event_types(client.update()) == ["session.updated"]


def test_an_item_is_the_speech_between_two_commits() -> None:
    client = Client()
    client.update(audio={"input": {"transcription": {"prompt": "Fritz"}}})
    assert client.say() == client.say(b"\0\1" * 600) == []
    assert client.hear(pending="so") == []  # only final text is sent
    (delta,) = client.hear("  Hello")
    committed, added, done = client.commit()
    client.say()
    assert client.hear(" one", stream=0)[0]["delta"] == " one"
    last, completed = client.hear(" two", stream=0, last=True)
    assert completed["transcript"] == delta["delta"] + " one" + last["delta"] == "Hello one two"
    assert completed["usage"] == {"type": "duration", "seconds": 1.025}
    client.session.fail(client.streams[0], SLOW)
    assert client.events[-1] is completed  # an item ends only once
    assert client.streams[0].options == {"initial_prompt": "Fritz"} and len(client.streams[0].pcm) == 49_200
    assert committed["previous_item_id"] is None and added["item"]["id"] == done["item"]["id"] == committed["item_id"]
    assert {event["item_id"] for event in (delta, last, completed)} == {committed["item_id"]}
    assert client.commit()[0]["previous_item_id"] == committed["item_id"]


def test_less_than_a_tenth_of_a_second_is_not_committed() -> None:
    client = Client()
    for size in (0, 4798):
        client.say(bytes(size))
        (event,) = client.commit()
        assert event["error"]["code"] == "input_audio_buffer_commit_empty"
    client.say(bytes(2))
    assert "input_audio_buffer.committed" in event_types(client.commit()) and len(client.streams) == 1


def test_a_cleared_item_sends_nothing_more() -> None:
    client = Client()
    client.say()
    assert event_types(client.send("input_audio_buffer.clear")) == ["input_audio_buffer.cleared"]
    assert client.streams[0].state == "cancelled" and client.hear("late") == []
    client.session.fail(client.streams[0], SLOW)
    assert event_types(client.commit()) == ["error"]
    client.say()
    assert client.commit()[0]["previous_item_id"] is None


def test_speech_that_is_refused_is_dropped_until_the_next_commit_or_clear() -> None:
    client = Client()
    client.refused = FULL
    (event,) = client.say(event_id="mine")
    assert (event["error"]["code"], event["error"]["event_id"]) == ("too_many_streams", "mine")
    client.refused = None
    assert client.say() == [] == client.streams
    assert client.commit()[0]["error"]["code"] == "too_many_streams"
    client.say()
    client.slow = SLOW
    failed, error = client.say()
    assert event_types([failed, error]) == ["failed", "error"] and client.streams[0].state == "cancelled"
    client.slow = None
    assert client.say() == []
    client.send("input_audio_buffer.clear")
    client.say()
    client.session.fail(client.streams[1], SLOW)
    assert event_types(client.events[-1:]) == ["failed"] and client.say() == []
    assert client.commit()[0]["error"]["code"] == "too_much_audio"
    assert client.say() == [] and event_types(client.commit())[0] == "input_audio_buffer.committed"


def test_hypotheses_are_sent_on_request() -> None:
    client = Client()
    client.update(hypotheses=True)
    client.say()
    (first,) = client.hear(pending=" a b")
    assert (first["delta"], first["pending"], first["pieces"]) == ("", "a b", [])
    (second,) = client.hear(" a b c", " d")
    assert (second["delta"], second["pending"]) == ("a b c", " d")
    assert second["pieces"] == [{"text": "a ", "from_draft": True}, {"text": "b c", "from_draft": False}]
    assert "".join(piece["text"] for piece in client.hear(" d")[0]["pieces"]) == " d"


@pytest.mark.parametrize(("size", "state"), [(4800, "finished"), (4798, "cancelled"), (0, None)])
def test_the_end_of_the_server_commits_what_can_be_committed(size: int, state: str | None) -> None:
    client = Client()
    client.say(bytes(size))
    client.session.finish()
    assert [stream.state for stream in client.streams] == ([state] if state else [])
    assert ("input_audio_buffer.committed" in event_types(client.events)) == (state == "finished")


NAMES = [
    *("type", "session", "audio", "input", "rate", *INPUT_FIELDS),
    *("language", "delay", "keywords", "languages"),
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(["de", RATE])
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=8,
)
SESSIONS = st.fixed_dictionaries({"type": st.just("transcription")}, optional={"audio": JSON, "hypotheses": JSON})
ACTIONS = st.one_of(
    st.tuples(st.just("text"), st.text(max_size=20) | JSON.map(json.dumps)),
    st.tuples(st.just("update"), SESSIONS | JSON),
    st.tuples(st.just("say"), st.integers(0, 3000)),
    st.tuples(st.just("hear"), st.tuples(st.text(max_size=5), st.text(max_size=5))),
    st.tuples(st.sampled_from(["commit", "clear", "last", "fail", "refuse", "slow"]), st.none()),
)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(ACTIONS, max_size=25))
def test_any_events_are_answered_with_valid_events(actions: list[tuple[str, Any]]) -> None:
    """Each item ends at most once."""
    client = Client()
    client.session.begin()
    for name, value in actions:
        running = [i for i, stream in enumerate(client.streams) if stream.state in ("open", "finished")]
        ended = [i for i in running if client.streams[i].state == "finished"]
        match name:
            case "text":
                client.session.receive(value)
            case "update":
                client.send("session.update", session=value)
            case "say":
                client.say(bytes(2 * value))
            case "hear" if running:
                client.hear(*value, stream=running[0])
            case "last" if ended:
                assert event_types(client.hear("end", stream=ended[0], last=True))[-1] == "completed"
                client.streams[ended[0]].state = "done"
            case "fail" if running:
                client.session.fail(client.streams[running[-1]], SLOW)
                client.streams[running[-1]].state = "failed"
            case "commit" | "clear":
                client.send(f"input_audio_buffer.{name}")
            case "refuse":
                client.refused = None if client.refused else FULL
            case "slow":
                client.slow = None if client.slow else SLOW
    assert sum(stream.state == "open" for stream in client.streams) <= 1
    require_valid(client.events)
    ends = [event["item_id"] for event in client.events if event["type"].endswith((".completed", ".failed"))]
    assert len(ends) == len(set(ends))


def require_valid(events: list[dict[str, Any]]) -> None:
    """Parse events strictly with OpenAI's types."""
    from openai.types.realtime.realtime_server_event import RealtimeServerEvent

    union, _ = get_args(RealtimeServerEvent)
    types = {get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(union)}
    for event in json.loads(json.dumps(events, allow_nan=False)):
        types[event["type"]].model_validate(event)
    assert len({event["event_id"] for event in events}) == len(events)
