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
from speculative_decoding.server import realtime_format
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.limits import MAX_LIVE_AUDIO, Limits
from speculative_decoding.server.model_names import ModelNames
from speculative_decoding.server.realtime_audio import FORMATS, PCM, AudioFormat
from speculative_decoding.server.realtime_format import INPUT_FIELDS, MAX_EVENT
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
    def __init__(self, options: Mapping[str, Any], audio_format: AudioFormat) -> None:
        self.options = options
        self.audio_format = audio_format
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

    def open(self, options: Mapping[str, Any], audio_format: AudioFormat) -> Stream:
        if self.refused is not None:
            raise self.refused
        self.streams.append(Stream(options, audio_format))
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
    ({"audio": {"input": {"format": {"type": "audio/opus"}}}}, f"{INPUT}.format.type", "invalid_value"),
    ({"audio": {"input": {"format": {"type": "g711_ulaw"}}}}, f"{INPUT}.format.type", "invalid_value"),
    (
        {"audio": {"input": {"format": {"type": "audio/pcma", "rate": 24000}}}},
        f"{INPUT}.format.rate",
        "unsupported_value",
    ),
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
    ('{"type": "transcription_session.update"}', "session", "missing_field"),
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
    monkeypatch.setattr(realtime_format, "parse_json", lambda *_: pytest.fail("parsed"))
    client.session.receive(text)
    (event,) = client.events
    assert event["error"]["code"] == "event_too_large" and len(json.dumps(event)) < 400


@pytest.mark.parametrize("escaped", ["/", "\\/", "\\u002f"])
@pytest.mark.parametrize("template", ['{"type": "%s", "audio": "%s"}', '{"audio" : "%s", "type": "%s"}'])
@pytest.mark.parametrize("seconds", [0.01, 3])
def test_audio_may_be_large(template: str, escaped: str, seconds: float) -> None:
    client = Client()
    audio = base64.b64encode(bytes(int(seconds * 48_000))).decode().replace("A", "/")
    values = ("input_audio_buffer.append", audio.replace("/", escaped))
    client.session.receive(template % (values if template.startswith('{"type') else values[::-1]))
    assert client.events == [] and client.streams[0].pcm == base64.b64decode(audio)


def test_audio_is_limited_as_in_openais_api() -> None:
    client = Client()
    assert client.say(bytes(MAX_LIVE_AUDIO)) == [] and len(client.streams[0].pcm) == MAX_LIVE_AUDIO
    (event,) = client.say(bytes(MAX_LIVE_AUDIO + 2))
    assert event["error"]["param"] == "audio" and f"at most {MAX_LIVE_AUDIO}" in event["error"]["message"]
    assert len(client.streams[0].pcm) == MAX_LIVE_AUDIO


# Each has a large string named "audio", but is not an event with audio that can be used
NOT_AUDIO = [
    ('{"type": "session.update", "session": {"audio": "%s"}}', None, "event_too_large"),
    ('{"type": "input_audio_buffer.append", "audio": "", "x": {"audio": "%s"}}', None, "event_too_large"),
    ('{"x": {"audio": "%s"}, "type": "input_audio_buffer.append", "audio": ""}', "x", "unknown_field"),
    ('{"type": "input_audio_buffer.commit", "audio": "%s"}', "audio", "unknown_field"),
    ('{"type": "input_audio_buffer.append", "audio": "%s\\"}', None, "invalid_json"),
    ('{"type": "input_audio_buffer.append", "audio": "%s\\x"}', None, "invalid_json"),
    ('{"type": "input_audio_buffer.append", "audio": "%s\\ud800"}', None, "invalid_json"),
    ('{"type": "input_audio_buffer.append", "audio": "%s", "audio": ""}', None, "invalid_json"),
    ('{"type": "input_audio_buffer.append", "audio": "%sA"}', "audio", "invalid_value"),
    ('[{"audio": "%s"}]', None, "invalid_json"),
]


@pytest.mark.parametrize(("template", "param", "code"), NOT_AUDIO)
def test_only_the_audio_of_an_append_event_may_be_large(template: str, param: str | None, code: str) -> None:
    client = Client()
    client.session.receive(template % BASE64)
    (event,) = client.events
    assert (event["error"]["code"], event["error"]["param"]) == (code, param) and not client.streams
    assert len(json.dumps(event)) < 500 and event_types(client.update()) == ["session.updated"]


@pytest.mark.parametrize("audio_format", FORMATS, ids=lambda each: each.name)
@pytest.mark.parametrize("is_older", [False, True], ids=["current", "beta"])
def test_a_session_has_the_audio_format_of_its_last_update(audio_format: AudioFormat, is_older: bool) -> None:
    client = Client()
    size = round(0.1 * audio_format.rate) * audio_format.bytes_per_sample
    if is_older:
        session = {"input_audio_format": audio_format.older_name, "input_audio_transcription": {"language": "German"}}
        (event,) = client.send("transcription_session.update", session=session)
        assert event["type"] == "transcription_session.updated"
        assert event["session"]["input_audio_format"] == audio_format.older_name
        assert event["session"]["input_audio_transcription"]["language"] == "de"
    else:
        (event,) = client.update(audio={"input": {"format": {"type": audio_format.name}}})
        assert event["session"]["audio"]["input"]["format"]["type"] == audio_format.name
        client.update(audio={"input": {"format": {"rate": audio_format.rate}}})
    client.say(bytes(size - audio_format.bytes_per_sample))
    assert client.commit()[0]["error"]["code"] == "input_audio_buffer_commit_empty"
    client.say(bytes(audio_format.bytes_per_sample))
    assert event_types(client.commit())[0] == "input_audio_buffer.committed"
    (stream,) = client.streams
    assert stream.audio_format is audio_format and len(stream.pcm) == size
    assert client.hear(last=True)[-1]["usage"]["seconds"] == pytest.approx(0.1)
    client.say(b"\0")  # half a sample of PCM
    assert (client.events[-1]["type"] == "error") is (audio_format is PCM)


def test_the_format_does_not_change_within_an_item() -> None:
    client = Client()
    telephone = {"input": {"format": {"type": "audio/pcmu"}}}
    client.say()
    before = client.update(audio={"input": {"format": {"type": "audio/pcm", "rate": 24000}}})[0]["session"]
    for sent in ({"audio": telephone}, {"audio": telephone, "hypotheses": True}):
        (event,) = client.update(**sent)
        assert (
            event["error"]["param"] == f"{INPUT}.format.type" and "send a commit or clear" in event["error"]["message"]
        )
    (event,) = client.send("transcription_session.update", session={"input_audio_format": "g711_alaw"})
    assert event["error"]["param"] == "session.input_audio_format"
    assert client.update()[0]["session"] == before
    client.commit()
    assert client.update(audio=telephone)[0]["session"]["audio"]["input"]["format"] == {"type": "audio/pcmu"}
    client.say()
    assert [stream.audio_format.name for stream in client.streams] == ["audio/pcm", "audio/pcmu"]


BAD_OLDER_SESSIONS: list[tuple[Any, str, str]] = [
    ({"input_audio_format": "audio/pcmu"}, "session.input_audio_format", "invalid_value"),
    ({"input_audio_transcription": {"language": "xx"}}, "session.input_audio_transcription.language", "invalid_value"),
    ({"input_audio_transcription": {"model": "gpt"}}, "session.input_audio_transcription.model", "model_not_found"),
    ({"turn_detection": {"type": "server_vad"}}, "session.turn_detection", "unsupported_value"),
    (
        {"input_audio_noise_reduction": {"type": "near_field"}},
        "session.input_audio_noise_reduction",
        "unsupported_value",
    ),
    ({"type": "transcription"}, "session.type", "unknown_field"),
    ({"modalities": ["video"]}, "session.modalities", "invalid_value"),
]


@pytest.mark.parametrize(("session", "param", "code"), BAD_OLDER_SESSIONS)
def test_errors_in_the_older_form_name_its_fields(session: Any, param: str, code: str) -> None:
    (event,) = Client().send("transcription_session.update", session=session)
    assert (event["error"]["param"], event["error"]["code"]) == (param, code)
    assert event["error"]["message"].startswith(param)


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
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["de", PCM.rate, "audio/pcma"])
)
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
