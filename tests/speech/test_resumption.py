"""A transcription that is interrupted after any window and continued has the transcript of an undisturbed one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from speculative_decoding.cli import programs
from speculative_decoding.session import Session
from speculative_decoding.speech.logs import ResumptionLogs, Source
from speculative_decoding.speech.scheduler import Scheduler, TranscriptionEvent
from speculative_decoding.speech.transcription import ResumePoint
from tests.support.kill_states import KillStates
from tests.support.speech import Letters, noise, speech_model, wav
from tests.support.tiny import WHISPER, save_whisper, tiny_whisper

MODEL = speech_model()
SPEECH = 0.1 * np.random.default_rng(0).normal(size=36_000).astype(np.float32)  # a window has 9,600 samples
SOURCE = Source("../a.wav", 5, 7)
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "word times": {"word_timestamps": True},
    "silence between words": {"word_timestamps": True, "hallucination_silence_threshold": 0.1},
    "sampled": {"temperature": (0.4, 0.9), "logprob_threshold": -0.5, "seed": 3},
    "own windows": {"condition_on_previous_text": False},
    "prompt": {"initial_prompt": "abc", "carry_initial_prompt": True},
    "clips": {"clip_timestamps": "0.3,1.4,1.9,3.1"},
    "without timestamps": {"without_timestamps": True},
    "beams": {"num_beams": 2},
    "chunks": {"chunked": True},
    "chunks with word times": {"chunked": True, "word_timestamps": True, "language": "de"},
}


def events_of(
    resume_from: ResumePoint | None = None, chunked: bool = False, **options: Any
) -> list[TranscriptionEvent]:
    session = Session(MODEL, Letters())
    options = {"drafter": "none", "temperature": 0.0, "no_speech_threshold": None, "sample_len": 6} | options
    if chunked:
        return [*session.transcribe_chunks(SPEECH, resume_from=resume_from, **options)]
    return [*session.transcribe_batch([{"audio": SPEECH, "resume_from": resume_from}], **options)]


def as_json(events: list[TranscriptionEvent]) -> str:
    assert events[-1].result is not None
    return json.dumps(events[-1].result.as_dict())


@pytest.mark.parametrize("name", OPTIONS)
def test_a_transcript_continued_after_each_window_has_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Each point is written to a log and read from it."""
    whole = events_of(**OPTIONS[name])
    points = [each.resume_point for each in whole if each.resume_point and each.resume_point.seek and not each.is_last]
    assert len(points) >= 2
    logs = ResumptionLogs(tmp_path, "s")
    for point in points:
        logs.append(SOURCE, point)
        logs.append(SOURCE, point)  # again, as the first event of a continued transcription
        logs.close(SOURCE)
        read = logs.resume_point(SOURCE)
        assert read is not None and [*read.segments] == [*point.segments]
        continued = events_of(read, **OPTIONS[name])
        assert as_json(continued) == as_json(whole)
        shown = [segment for event in continued for segment in event.segments]
        assert continued[-1].result is not None and shown == continued[-1].result.segments
    decoded = [events_of(point, **OPTIONS[name])[-1].result.stats.target_calls for point in points]  # type: ignore[union-attr]
    assert decoded == sorted(decoded, reverse=True) and decoded[0] > decoded[-1]  # nothing is decoded again
    logs.remove(SOURCE)
    assert not [*tmp_path.iterdir()]


def test_a_log_continues_only_the_same_recording_with_the_same_settings(tmp_path: Path) -> None:
    point = ResumePoint("en", 0, 60, 2, 0.5, ())

    def read(source: Source, settings: str) -> ResumePoint | None:
        logs = ResumptionLogs(tmp_path, settings)
        try:
            return logs.resume_point(source)
        finally:
            logs.close_all()

    logs = ResumptionLogs(tmp_path, "s")
    logs.append(SOURCE, point)
    logs.close_all()
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    assert read(SOURCE, "s") == point._replace(segments=[])
    for source, settings in (
        (SOURCE, "other"),
        (SOURCE._replace(size=6), "s"),
        (SOURCE._replace(mtime_ns=8), "s"),
        (SOURCE._replace(path="../b.wav"), "s"),
    ):
        assert read(source, settings) is None
    for damaged in (content[:-1], content[:-9] + bytes(9), content[:5], b"", bytes(9)):
        path.write_bytes(damaged)
        assert read(SOURCE, "s") is None


COMMAND = "--num-draft 0 --temperature 0 -m 8 --no-speech-threshold none --dtype float32 --slots 2 -f txt,srt,json"


def test_a_killed_command_continues_half_done_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    save_whisper(tiny_whisper(), tmp_path / "speech", WHISPER)
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for number, seconds in enumerate((1.5, 2.1)):
        Path(f"in/{number}.wav").write_bytes(wav(noise(number, seconds)))

    def run(folder: str | Path) -> str:
        arguments = f"transcribe in -o {folder} --model speech {COMMAND} --word-timestamps".split()
        assert programs.main(arguments) == 0
        return capfd.readouterr().err

    def content(folder: str | Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != ".transcribe.jsonl"}

    states = KillStates(tmp_path / "texts" / "out", tmp_path / "states")  # as deep: paths in the ledger are relative
    with monkeypatch.context() as patch:
        states.around(patch, ResumptionLogs, "append")
        states.around(patch, ResumptionLogs, "remove")
        assert "continues at" not in run("texts/out")
    expected = content("texts/out")
    assert set(expected) == {f"{number}.{name}" for number in range(2) for name in ("txt", "srt", "json")}
    for number in (3, len(states.paths) // 2):
        said = run(states.paths[number])
        assert "wav: continues at 0:0" in said and content(states.paths[number]) == expected, said
    assert len(content(states.paths[-2])) == 7  # killed before the log is removed
    run(states.paths[-2])
    assert content(states.paths[-2]) == expected


def test_a_changed_recording_and_force_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    save_whisper(tiny_whisper(), tmp_path / "speech", WHISPER)
    monkeypatch.chdir(tmp_path)
    started: list[int] = []
    start: Callable[..., Any] = Scheduler.start

    def noted(self: Scheduler, number: int, task: Any) -> Any:
        started.append(0 if task.resume_from is None else task.resume_from.seek)  # in frames
        return start(self, number, task)

    monkeypatch.setattr(Scheduler, "start", noted)

    def run(more: str = "", status: int = 0) -> int:
        assert (
            programs.main(f"transcribe a.wav -o out --model speech {COMMAND.replace('--slots 2', '')} {more}".split())
            == status
        )
        return started.pop()

    def interrupted() -> None:
        with monkeypatch.context() as patch:
            append = ResumptionLogs.append

            def stop(self: ResumptionLogs, source: Source, point: ResumePoint) -> None:
                append(self, source, point)
                if point.seek > 100:
                    raise KeyboardInterrupt

            patch.setattr(ResumptionLogs, "append", stop)
            assert run("--force", 130) == 0

    Path("a.wav").write_bytes(wav(noise(1, 2.5)))
    interrupted()
    assert run() > 100  # continued
    assert [*Path("out").glob(".transcribe.?*.jsonl")] == []
    interrupted()
    assert run("--force") == 0
    interrupted()
    Path("a.wav").write_bytes(wav(noise(2, 2.6)))
    assert run() == 0
