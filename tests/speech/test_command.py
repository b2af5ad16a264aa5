"""`transcribe`: what is printed, in which order, and which flags are refused. Events come from a fake session."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from speculative_decoding.cli.parser import flag
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.errors import InputError
from speculative_decoding.models.whisper_tokens import AudioConfig, config_by_layout
from speculative_decoding.rows import in_order
from speculative_decoding.sampling import GenerationOptions
from speculative_decoding.speech import command as transcribe
from speculative_decoding.speech.audio_file import AudioSource
from speculative_decoding.speech.scheduler import TranscriptionEvent
from speculative_decoding.speech.segments import Segment, Word
from speculative_decoding.speech.transcription import Transcription
from tests.support.paths import ROOT
from tests.support.terminal import read_terminal

JFK = str(ROOT / "data" / "jfk.wav")
STATS = GenerationStats(generated_tokens=30, target_calls=10, drafted_tokens=40, accepted_tokens=20)


def segment(text: str, start: float, words: list[Word] | None = None) -> Segment:
    return Segment(0, 0, start, start + 1, text, [1], 0.0, -0.5, 1.0, 0.1, words)


def progress_of(index: int, texts: Sequence[str], language: str = "de") -> list[TranscriptionEvent]:
    """A recording of as many seconds as there are segments."""
    segments = [segment(f" {text}", number) for number, text in enumerate(texts)]
    events = [TranscriptionEvent(index, [], 0.0, len(texts), language)]
    events += [TranscriptionEvent(index, [each], i + 1.0, len(texts), language) for i, each in enumerate(segments)]
    result = Transcription(" ".join(texts), segments, language, len(texts), STATS)
    return [*events[:-1], events[-1]._replace(result=result)]


class FakeSession:
    """Yields given events, and keeps the arguments."""

    def __init__(self, events: Sequence[TranscriptionEvent]) -> None:
        self.events = events
        self.given: dict[str, Any] = {}

    def transcribe_batch(self, recordings: Sequence[AudioSource], **options: Any) -> Iterator[TranscriptionEvent]:
        self.given = {"recordings": [each.name for each in recordings], **options}
        yield from self.events

    def transcribe_chunks(self, recording: AudioSource, **options: Any) -> Iterator[TranscriptionEvent]:
        self.given = {"chunks": recording.name, **options}
        yield from self.events


MULTILINGUAL = config_by_layout(
    51865, 1500, num_mel_bins=80, start=50258, end=50257, alignment_heads=[], languages={"de": 1, "en": 2}
)
ENGLISH = replace(MULTILINGUAL, is_multilingual=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Transcribe with a fake session; return (exit status, standard output, standard error, given arguments)."""

    def call(
        *arguments: str, events: Sequence[TranscriptionEvent] = (), audio: AudioConfig | None = MULTILINGUAL
    ) -> tuple[int, str, str, dict[str, Any]]:
        session = FakeSession(events)
        target = SimpleNamespace(model=SimpleNamespace(audio=audio), folder=Path("t5"))

        @contextmanager
        def open_session(pair: Any) -> Iterator[FakeSession]:
            yield session

        config = SimpleNamespace(
            open=lambda: SimpleNamespace(target=target, folders={}),
            describe=lambda: "target whisper",
            session=open_session,
            options=GenerationOptions(),
            drafter="none",
        )
        monkeypatch.setattr(transcribe, "run_config_from", lambda chosen, may_sample: config)
        monkeypatch.setattr(transcribe, "note_exactness", lambda session, slots: None)
        try:
            status = transcribe.main([*arguments])
        except SystemExit as exit:
            status = int(exit.code or 0)
        out, err = capsys.readouterr()
        return status, out, err, session.given

    return call


def test_segments_and_the_language_are_printed(run: Any) -> None:
    status, out, err, given = run(JFK, events=progress_of(0, ["eins", "zwei"]))
    assert (status, out) == (0, "eins\nzwei\n")
    assert "detected language: de\n" in err and "0:02 of audio" in err and "3.00 tokens per call" in err
    assert given == {"recordings": [JFK], "slots": 1}
    for changes in ({"audio": ENGLISH}, {}):
        flags = () if changes else ("--source-language", "de")
        *_, err, given = run(JFK, *flags, events=progress_of(0, ["eins"]), **changes)
        assert "detected" not in err and given.get("language") == (None if changes else "de")


def test_recordings_are_printed_one_after_the_other(run: Any) -> None:
    first, second, third = (
        progress_of(i, [f"{i}a", f"{i}b"], language) for i, language in enumerate(["de", "en", "de"])
    )
    events = [second[0], first[0], second[1], third[0], first[1], *third[1:], second[2], first[2]]
    status, out, err, given = run("a", JFK, "c", events=events)
    assert status == 0 and given["slots"] == 3
    assert out == f"==> a <==\n0a\n0b\n\n==> {JFK} <==\n1a\n1b\n\n==> c <==\n2a\n2b\n"
    assert "a: detected language: de" in err and f"{JFK}: detected language: en" in err and "0:06 of audio" in err

    status, out, *_ = run("a", JFK, "c", "--output-format", "json", events=events)
    assert [each["text"] for each in json.loads(out)] == ["0a 0b", "1a 1b", "2a 2b"]


def test_events_come_in_order_as_soon_as_possible() -> None:
    events = [*progress_of(1, ["c"]), *progress_of(0, ["a", "b"]), *progress_of(2, ["d"])]
    seen: list[TranscriptionEvent] = []

    def watched() -> Iterator[TranscriptionEvent]:
        for event in events:
            seen.append(event)
            yield event

    counts = [(event.number, len(seen)) for event in in_order(watched(), attrgetter("number"), attrgetter("is_last"))]
    assert counts == [(0, 3), (0, 4), (0, 5), (1, 5), (1, 5), (2, 6), (2, 7)]


def test_a_recording_that_fails_does_not_stop_the_others(run: Any) -> None:
    failed = TranscriptionEvent(0, [], 0.0, 0.0, None, error="a: no sound")
    events = [failed, *progress_of(1, ["eins"])]
    status, out, err, _ = run("a", JFK, events=events)
    assert status == 1 and out.endswith("<==\neins\n") and "error: a: no sound\n" in err
    status, out, *_ = run("a", JFK, "--output-format", "json", events=events)
    assert status == 1 and json.loads(out)[0] == {"error": "a: no sound"}
    status, out, err, _ = run(JFK, events=[failed])
    assert (status, out) == (2, "") and err.endswith("speculative-decoding transcribe: error: a: no sound\n")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("text", "eins\n"),
        ("srt", "1\n00:00:00,000 --> 00:00:01,000\neins\n\n"),
        ("vtt", "WEBVTT\n\n00:00.000 --> 00:01.000\neins\n\n"),
    ],
)
def test_output_formats(name: str, expected: str, run: Any) -> None:
    assert run(JFK, "--output-format", name, events=progress_of(0, ["eins"]))[1] == expected


def test_json_has_the_fields_of_openai_whisper(run: Any) -> None:
    content = json.loads(run(JFK, "--output-format", "json", events=progress_of(0, ["eins"]))[1])
    assert list(content) == ["text", "segments", "language"]
    assert list(content["segments"][0]) == [
        *("id", "seek", "start", "end", "text", "tokens", "temperature"),
        *("avg_logprob", "compression_ratio", "no_speech_prob"),
    ]


def test_flags_become_options(run: Any) -> None:
    flags = (
        "--task translate --word-timestamps --no-condition-on-previous-text --temperature 0 -m 40 --no-speech-threshold"
    )
    given = run(JFK, *flags.split(), "none", events=progress_of(0, ["eins"]))[3]
    assert given == {
        "recordings": [JFK],
        "slots": 1,
        "task": "translate",
        "word_timestamps": True,
        "condition_on_previous_text": False,
        "temperature": 0.0,
        "sample_len": 40,
        "no_speech_threshold": None,
    }
    assert run(JFK, "--chunked", events=progress_of(0, ["eins"]))[3] == {"chunks": JFK, "slots": 8}
    assert run(JFK, "--source-language", "none", events=progress_of(0, ["eins"]))[3]["language"] is None


def test_decoding_flags_become_options(run: Any) -> None:
    flags = ("--source-language", "de", "-m", "40", "--temperature", "0.5", "--top-k", "3")
    status, out, _, given = run(*flags, JFK, events=progress_of(0, ["eins"]))
    assert (status, out) == (0, "eins\n")
    expected = {"language": "de", "sample_len": 40, "temperature": 0.5}
    assert given == {"recordings": [JFK], "slots": 1, **expected}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--top-k 3", ""),
        ("--top-k 3 --temperature 0.5", ""),
        ("--top-k 3 --temperature 0", "--top-k: has no effect at --temperature 0"),
        (
            "--num-beams 5 --draft-model t5-web-docs-draft",
            "--draft-model: t5-web-docs-draft has no effect with --num-beams 5",
        ),
    ],
)
def test_options_of_sampling_have_an_effect_if_windows_may_be_sampled(flags: str, message: str) -> None:
    """The bundled model reads text, which is the error if the flags are suitable."""
    arguments = [JFK, "--model", "t5-web-docs", *flags.split()]
    with pytest.raises(InputError) as error:
        transcribe.transcribe(transcribe.transcribe_parser("transcribe").parse_args(arguments))
    assert (message or "reads text") in error.value.message(flag)


def test_standard_input_is_a_recording(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["-"], [JFK, "-"]):
        with open(JFK, "rb") as file, monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", SimpleNamespace(buffer=file, isatty=lambda: False))
            main = arguments if arguments[0] == "--audio" else [*arguments]
            status, _, err, given = run(
                *main, events=[each for i in range(len(main) - 1) for each in progress_of(i, ["a"])]
            )
        assert status == 0 and given["recordings"][-1] == "standard input", err
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    status, _, err, _ = run("-")
    assert status == 2 and "FILE: - reads standard input, which is a terminal; redirect a file to it" in err


@pytest.mark.parametrize("is_piped", [False, True])
def test_text_scrolls_above_the_bar_at_a_terminal(
    is_piped: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    ours, theirs = os.openpty()
    with open(theirs, "w", buffering=1) as terminal, (tmp_path / "text").open("w") as pipe:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdout", pipe if is_piped else terminal)
        output = transcribe.Output([JFK], "text", shows_language=False)
        output.print(progress_of(0, ["eins", "zwei"]))
        monkeypatch.undo()
        seen = ""
        while "\x1b[?25h" not in seen:  # the bar ends with showing the cursor
            seen += read_terminal(ours).decode(errors="replace")
    os.close(ours)
    text = (tmp_path / "text").read_text()
    assert "0:02 of 0:02" in seen and "100%" in seen
    assert [*map(seen.count, ("eins\r\n", "zwei\r\n"))] == ([0, 0] if is_piped else [1, 1])
    assert text == ("eins\nzwei\n" if is_piped else "")


def test_statistics_are_written(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    assert run(JFK, "--stats-json", str(path), events=progress_of(0, ["eins"]))[0] == 0
    stats = json.loads(path.read_text())
    assert (stats["audio_seconds"], stats["target_calls"], stats["audio"]) == (1, 10, [JFK])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nowhere.wav", "nowhere.wav: cannot be read (No such file or directory); name an audio file"),
        ("tests", "tests: cannot be read (not a regular file)"),
        ("nowhere.wav README.md", "FILE: none of the files can be read (README.md: "),
        ("", "the following arguments are required: FILE"),
        ("JFK --slots 2", "--slots: has no effect without --chunked or several files"),
        ("JFK --prompt x", "--prompt: unknown option"),
        ("JFK --compare", "--compare: unknown option"),
        ("JFK --stop x", "--stop: unknown option"),
        ("JFK --target-language en", "--target-language: unknown option"),
        ("JFK JFK --output-format vtt", "--output-format: vtt is for one file (got 2)"),
        ("JFK JFK --chunked", "--chunked: is for one file (got 2)"),
        ("JFK --chunked --clip-timestamps 1", "--clip-timestamps: cannot be combined with --chunked"),
        ("JFK --hallucination-silence-threshold 1", "has no effect without --word-timestamps"),
        ("JFK --temperature 0 --compression-ratio-threshold 2", "has no effect with --temperature"),
        ("JFK --temperature 0.5 --num-beams 5", "--num-beams: 5 has no effect at --temperature 0.5"),
        ("JFK --carry-initial-prompt", "--carry-initial-prompt: has no effect without --initial-prompt"),
        ("JFK --clip-timestamps x", "--clip-timestamps: must be"),
        ("JFK --source-language xx", "--source-language: 'xx' is unknown; choose one of the 2 languages"),
        ("JFK --no-speech-threshold 2", "--no-speech-threshold: must be"),
        ("JFK --stats-json JFK", "is already used by FILE; name another"),
        ("JFK --stats-json /nowhere/a.json", "--stats-json: /nowhere/a.json cannot be written"),
    ],
)
def test_unsuitable_flags_are_one_line(arguments: str, message: str, run: Any) -> None:
    status, out, err, given = run(*arguments.replace("JFK", JFK).split())
    assert status == 2 and not out and not given
    assert message in err and err.count("\n") == 1 + err.count("target whisper\n")


@pytest.mark.parametrize(
    ("arguments", "audio", "message"),
    [
        ((), None, "--model: t5 reads text and cannot transcribe; name a speech model, such as --model openai/"),
        (("--task", "translate"), ENGLISH, "--task: this model knows English only"),
        (("--source-language", "de"), ENGLISH, "--source-language: this model knows English only, not 'de'"),
    ],
)
def test_unsuitable_models_are_refused_before_weights_load(
    arguments: Sequence[str], audio: AudioConfig | None, message: str, run: Any
) -> None:
    status, out, err, given = run(JFK, *arguments, audio=audio)
    assert status == 2 and not out and not given and message in err and err.count("\n") == 1
