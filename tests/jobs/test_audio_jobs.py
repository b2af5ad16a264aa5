"""Tests lines with recordings: each record is the transcript of its file, and an error affects only its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import GenerationOptions, InputError, Session
from speculative_decoding.jobs.command import BatchFlags, require_recordings, row_scheduler
from speculative_decoding.speech.formats import srt
from tests.support.job_engine import run_job
from tests.support.speech import Letters, noise, speech_model, wav
from tests.support.tiny import tiny_model
from tests.support.together import Letters as TextLetters

FIRST: dict[str, Any] = {"temperature": 0, "no_speech_threshold": None, "sample_len": 12}
LINES: list[dict[str, Any]] = [
    {"audio": "a.wav", "id": 7, **FIRST},
    {"audio": "missing.wav", **FIRST},
    {"audio": "sub/b.wav", "language": "de", "word_timestamps": True, **FIRST},
    {"prompt": "abc"},
    {"audio": "a.wav", "task": "sing"},
    {"audio": "a.wav", "text": "x"},
    {"audio": 3},
    {"audio": "text.wav"},
    {"audio": "a.wav", "num_draft_tokens": -1},
    {"audio": "a.wav", "task": "translate", **FIRST},
]
ERRORS = {
    2: "missing.wav: cannot be read (No such file or directory)",
    4: "this model transcribes speech",
    5: "task: must be one of transcribe, translate, not 'sing'",
    6: "text: is also a field of the output",
    7: "audio: must be text",
    8: "text.wav: ",
    9: "num_draft_tokens: must be",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("os.fsync", lambda _: None)
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.wav").write_bytes(wav(noise(0, 0.9)))
    (tmp_path / "sub" / "b.wav").write_bytes(wav(noise(1, 0.5)))
    (tmp_path / "text.wav").write_text("no sound")
    return tmp_path


def session() -> Session:
    return Session(speech_model(), Letters(), options=GenerationOptions(drafter="none"))


def content() -> bytes:
    return "\n".join(map(json.dumps, LINES)).encode()


def test_records_are_transcripts_and_errors_stay_in_their_line(folder: Path) -> None:
    rows = row_scheduler(session(), BatchFlags(input=str(folder / "job.jsonl"), slots=2))
    totals = run_job(folder / "out", content(), *rows, format="jsonl")
    records = [json.loads(line) for line in (folder / "out").read_bytes().splitlines()]
    assert [each["line"] for each in records] == [*range(1, 11)] and records[0]["id"] == 7
    for line, error in ERRORS.items():
        assert error in records[line - 1]["error"] and "\n" not in records[line - 1]["error"]
    assert totals.errors == len(ERRORS) and totals.rows == 3
    for line in (1, 3, 10):
        own = {name: value for name, value in LINES[line - 1].items() if name not in ("audio", "id")}
        expected = session().transcribe(folder / LINES[line - 1]["audio"], **own)
        found = records[line - 1]
        assert (found["text"], found["language"], found["seconds"]) == (
            expected.text,
            expected.language,
            expected.seconds,
        )
        times = [(each["start"], each["end"], each["text"]) for each in found["segments"]]
        assert times == [(each.start, each.end, each.text) for each in expected.segments] != []
        assert found["generated_tokens"] == expected.stats.generated_tokens
    assert any("words" in each for each in records[2]["segments"])


def test_lines_with_recordings_have_draft_texts_of_their_own(folder: Path) -> None:
    """A draft text changes only the counts of a record. The draft text of another line is never used."""
    (folder / "sub" / "b.wav").write_bytes(wav(noise(3, 1.6)))
    own = Session(speech_model(), Letters(), options=GenerationOptions(drafter="text", num_draft_tokens=15))
    alone = [own.transcribe(folder / name, **FIRST) for name in ("a.wav", "sub/b.wav")]
    texts = ["".join(srt(each.segments)) for each in alone]
    lines = [
        {"audio": "a.wav", "draft_text": texts[0], **FIRST},
        {"audio": "sub/b.wav", "draft_text": ["abc", texts[1]], **FIRST},
        {"audio": "a.wav", **FIRST},
        {"audio": "a.wav", "draft_text": 3, **FIRST},
    ]
    rows = row_scheduler(own, BatchFlags(input=str(folder / "job.jsonl"), slots=2))
    run_job(folder / "out", "\n".join(map(json.dumps, lines)).encode(), *rows, format="jsonl")
    *found, refused = (json.loads(line) for line in (folder / "out").read_bytes().splitlines())
    assert [each["text"] for each in found] == [alone[0].text, alone[1].text, alone[0].text]
    assert "draft_text: must be text, or a list of such, not 3" in refused["error"]
    calls = [each["target_calls"] for each in found]
    without = [each.stats.target_calls for each in alone]
    assert calls[0] < without[0] == calls[2] and calls[1] < without[1] and found[2]["drafted_tokens"] == 0


def test_a_text_model_refuses_recordings_and_carries_a_prompts_field(folder: Path) -> None:
    own = Session(tiny_model(), TextLetters(), options=GenerationOptions(drafter="none", max_tokens=3))
    lines = [{"audio": "a.wav"}, {"prompt": "abc", "audio": "a.wav", "language": "de"}]
    rows = row_scheduler(own, BatchFlags(input="job.jsonl", slots=2))
    run_job(folder / "out", "\n".join(map(json.dumps, lines)).encode(), *rows, format="jsonl")
    refused, carried = (json.loads(line) for line in (folder / "out").read_bytes().splitlines())
    assert "this model reads text" in refused["error"]
    assert carried["audio"] == "a.wav" and carried["language"] == "de" and "error" not in carried


def test_without_the_folder_speech_a_line_with_a_recording_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speculative_decoding.subpackages.has_subpackage", lambda name: name != "speech")
    run_job(tmp_path / "out", b'{"audio": "a.wav", "id": 7}\n{"prompt": "ab", "audio": "a.wav"}', format="jsonl")
    refused, prompt = (json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines())
    assert refused["error"].startswith("audio: needs the folder speculative_decoding/speech") and refused["id"] == 7
    assert prompt["text"] == "ba"
    with pytest.raises(InputError, match="^input: needs the folder speculative_decoding/speech"):
        row_scheduler(session(), BatchFlags(input="job.jsonl"))


@pytest.mark.parametrize(
    ("option", "flag"), [({"temperature": 0.5}, {}), ({}, {"max_memory": 3.0}), ({}, {"prefix": "a"})], ids=str
)
def test_flags_without_effect_on_recordings_are_refused(option: dict[str, Any], flag: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^{next(iter(option | flag))}: has no effect"):
        require_recordings(GenerationOptions(**option), BatchFlags(input="job.jsonl", **flag), None)
    require_recordings(GenerationOptions(), BatchFlags(input="job.jsonl"), None)
