"""Given transcripts change only the speed, and are followed through windows, times and punctuation."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from speculative_decoding.session import Session
from speculative_decoding.speech import formats
from speculative_decoding.speech.draft_texts import Cue, GivenTranscript, RecordingDraft, cues_of
from speculative_decoding.speech.speech_text import SpeechText
from speculative_decoding.speech.transcription import Transcription
from tests.support.speech import END, ZERO, Letters, noise, speech_model

MODEL = speech_model()
assert MODEL.audio is not None
TEXT = SpeechText(Letters(), MODEL.audio)
RECORDINGS = [noise(2, 1.5), noise(1, 0.6), noise(2, 0.9)]
GREEDY: dict[str, Any] = {"temperature": 0, "no_speech_threshold": None}
FALLBACK: dict[str, Any] = {"temperature": (0, 0.4, 0.8), "no_speech_threshold": None, "sample_len": 12, "seed": 3}
SETTINGS = {
    "greedy": GREEDY,
    "falls back": FALLBACK,
    "without previous text": GREEDY | {"condition_on_previous_text": False, "initial_prompt": "abc"},
    "words": GREEDY | {"word_timestamps": True},
    "without timestamps": GREEDY | {"without_timestamps": True, "sample_len": 1},
    "clips": GREEDY | {"clip_timestamps": "0.5,1.1,1.4"},
    "translated": GREEDY | {"task": "translate", "language": "de"},
}
ORDINARY = ["", " ", "\n-->\n", "{", '{"segments": 3}', '{"segments": [{"text": "a", "start": NaN, "end": 1}]}']


def transcribe(audio: Any = RECORDINGS[0], **options: Any) -> Transcription:
    return Session(MODEL, Letters()).transcribe(audio, **options)


@cache
def baseline() -> Transcription:
    return transcribe(drafter="none", **GREEDY)


def written(found: Transcription) -> dict[str, str]:
    """The transcript in every format that is read."""
    return {
        "text": found.text,
        "srt": "".join(formats.srt(found.segments)),
        "srt of Windows": "".join(formats.srt(found.segments)).replace("\n", "\r\n"),
        "vtt": "".join(formats.vtt(found.segments)),
        "json": json.dumps(found.as_dict()),
        "times": "".join(f"<|{each.start:.2f}|>{each.text}<|{each.end:.2f}|>" for each in found.segments),
    }


def same(found: Transcription, expected: Transcription) -> bool:
    return [each.tokens for each in found.segments] == [each.tokens for each in expected.segments]


@pytest.mark.parametrize("setting", SETTINGS)
def test_given_texts_change_no_token(setting: str) -> None:
    """Right and wrong texts, with and without times, empty, long, in another script, and several at once."""
    options = SETTINGS[setting]
    expected = transcribe(drafter="none", **options)
    assert len(expected.segments) > 1
    texts = [*written(expected).values(), "", "какой-то текст 本文", "ab " * 500, expected.text[::-1]]
    for given in [texts[1], texts[-2], texts[:3] + texts[-4:]]:
        found = transcribe(draft_text=given, num_draft_tokens=5, **options)
        assert same(found, expected), given
        assert found.as_dict()["text"] == expected.text


@pytest.mark.parametrize(("name", "drafter"), [("text", "text"), ("srt", "ngram"), ("json", "auto")])
def test_a_right_text_saves_calls_in_all_windows(name: str, drafter: str) -> None:
    expected = baseline()
    assert len({each.seek for each in expected.segments}) > 2
    found = transcribe(draft_text=written(expected)[name], drafter=drafter, num_draft_tokens=15, **GREEDY)
    assert same(found, expected)
    assert found.stats.target_calls < 0.85 * expected.stats.target_calls


def test_recordings_have_their_own_texts() -> None:
    session = Session(MODEL, Letters())
    expected = [session.transcribe(audio, drafter="none", **GREEDY) for audio in RECORDINGS]
    items = [
        {"audio": audio, "draft_text": each.text} for audio, each in zip(RECORDINGS, reversed(expected), strict=True)
    ]
    results = {}
    for event in session.transcribe_batch(items, num_draft_tokens=6, **GREEDY):
        if event.result is not None:
            results[event.number] = event.result
    assert all(same(results[number], each) for number, each in enumerate(expected))


def test_given_texts_change_no_chunk() -> None:
    session = Session(MODEL, Letters())

    def last(**options: Any) -> Transcription:
        *_, event = session.transcribe_chunks(RECORDINGS[0], slots=2, **GREEDY, **options)
        assert event.result is not None
        return event.result

    expected = last(drafter="none")
    assert same(last(draft_text=written(expected)["srt"], num_draft_tokens=15), expected)


@pytest.mark.parametrize("name", ["srt", "srt of Windows", "vtt", "json", "times"])
def test_every_format_gives_texts_and_times(name: str) -> None:
    found = baseline()
    segments = [
        replace(found.segments[0], start=start, end=end, text=f" {text}", words=None)
        for start, end, text in [(0.0, 1.5, "One, two."), (3.0, 3661.25, "Three")]
    ]
    cues = cues_of(written(replace(found, segments=segments))[name])
    assert [cue._replace(text=cue.text.strip()) for cue in cues] == [
        Cue("One, two.", 0.0, 1.5),
        Cue("Three", 3.0, 3661.25),
    ]


@pytest.mark.parametrize("text", [each for each in ORDINARY if each.strip()])
def test_other_texts_are_one_part_without_times(text: str) -> None:
    assert cues_of(text) == [Cue(text)]


def continued(given: str, output: str | list[int], *, start: float | None = 0.0, before: str = "") -> list[int]:
    """The tokens that a text proposes after an output. before: the transcript before the window."""
    draft = RecordingDraft(GivenTranscript(given, TEXT, "en"))
    follower = draft.window(TEXT.text_tokens(before), start or 0.0, start is not None).follow([1, 2, 3])
    for token in TEXT.text_tokens(output) if isinstance(output, str) else output:
        follower.append(token)
    place = follower.find()
    return [] if place is None else follower.continuation(place, 6)


A, B, C, D, DASH, SPACE = 0, 1, 2, 3, 39, 37


@pytest.mark.parametrize(
    ("given", "output", "expected"),
    [
        ("<|0.00|>ab<|0.10|><|0.10|>cd<|0.30|>", [], [ZERO, SPACE, A, B, ZERO + 5, ZERO + 5]),
        ("<|0.00|>ab<|0.10|><|0.10|>cd<|0.30|>", [ZERO, A, B], [ZERO + 5, ZERO + 5, SPACE, C, D, ZERO + 15]),
        # another time: the next segment starts with it, too
        ("<|0.00|>ab<|0.10|><|0.10|>cd<|0.30|>", [ZERO, A, B, ZERO + 7], [ZERO + 7, SPACE, C, D, ZERO + 15, END]),
        ("<|0.00|>ab<|0.10|><|0.10|>cd<|0.30|>", [ZERO, A, B, ZERO + 7, ZERO + 7], [SPACE, C, D, ZERO + 15, END]),
        ("<|0.00|>ab<|0.10|><|0.50|>cd<|0.60|>", [ZERO, A, B, ZERO + 7], [ZERO + 25, SPACE, C, D, ZERO + 30, END]),
        ("<|0.00|>ab<|0.10|><|0.10|>cd<|0.30|>", [ZERO, A, B, ZERO + 5, ZERO + 5, C, D, ZERO + 15], [END]),
        ("abcd", [], [ZERO, SPACE, A, B, C, D]),
        ("abcd", [ZERO, A, B, ZERO + 5], [ZERO + 5, C, D, END]),
        ("abcd", [ZERO, A, B, DASH], [C, D, END]),  # punctuation that the text lacks
        ("abcd", [ZERO, A, B, DASH, ZERO + 5, ZERO + 5], [C, D, END]),
    ],
)
def test_times_and_punctuation_are_filled_in(given: str, output: list[int], expected: list[int]) -> None:
    assert continued(given, output) == expected


def test_outputs_without_timestamps_get_none() -> None:
    assert continued("<|0.00|>ab<|0.10|><|0.10|>cd<|0.30|>", [], start=None) == [SPACE, A, B, SPACE, C, D]


def test_a_window_starts_at_the_place_of_the_transcript_or_else_by_time() -> None:
    times = "<|0.00|>abcdef<|1.00|><|1.00|>ghijkl<|2.00|><|2.00|>mnopqr<|3.00|>"
    followed = continued(times, [], start=0.6, before="abcdefghi")
    assert followed[1:4] == [9, 10, 11]  # j, where the text so far ends
    assert continued(times, [], start=2.0)[2:5] == [12, 13, 14]
    assert continued(times, [], start=9.0)[1:] == [END]
    assert continued("abcdefghijkl", [], start=2.0, before="abcdef")[1:4] == [6, 7, 8]
