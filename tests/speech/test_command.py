"""`transcribe`: what is printed, in which order, and which flags are refused."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from speculative_decoding.cli.parser import flag
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.errors import InputError
from speculative_decoding.speech import command as transcribe
from speculative_decoding.speech.output import Output, Report
from speculative_decoding.speech.scheduler import TranscriptionEvent
from speculative_decoding.speech.segments import Segment
from speculative_decoding.speech.transcription import Transcription
from tests.support.paths import ROOT
from tests.support.speech import wav
from tests.support.terminal import read_terminal
from tests.support.tiny import WHISPER, save_whisper, tiny_whisper

JFK = str(ROOT / "data" / "jfk.wav")
STATS = GenerationStats(generated_tokens=30, target_calls=10, drafted_tokens=40, accepted_tokens=20)


def progress_of(index: int, texts: Sequence[str], language: str = "de") -> list[TranscriptionEvent]:
    """A recording of as many seconds as there are segments."""
    segments = [Segment(0, 0, i, i + 1, f" {text}", [1], 0.0, -0.5, 1.0, 0.1) for i, text in enumerate(texts)]
    events = [TranscriptionEvent(index, [], 0.0, len(texts), language)]
    events += [TranscriptionEvent(index, [each], i + 1.0, len(texts), language) for i, each in enumerate(segments)]
    result = Transcription(" ".join(texts), segments, language, len(texts), STATS)
    return [*events[:-1], events[-1]._replace(result=result)]


def printed(
    names: Sequence[str], events: Sequence[TranscriptionEvent], format: str, capsys: pytest.CaptureFixture[str]
) -> tuple[Report, str, str]:
    """Print recordings. Returns the report, standard output and standard error."""
    report = Report(names, shows_language=True)
    Output(report, format).print(events)
    return report, *capsys.readouterr()


def test_recordings_are_printed_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = (
        progress_of(i, [f"{i}a", f"{i}b"], language) for i, language in enumerate(["de", "en", "de"])
    )
    events = [second[0], first[0], second[1], third[0], first[1], *third[1:], second[2], first[2]]
    report, out, err = printed(["a", "b", "c\x1b[2J"], events, "txt", capsys)
    assert out == "==> a <==\n0a\n0b\n\n==> b <==\n1a\n1b\n\n==> c\\x1b[2J <==\n2a\n2b\n"  # no control characters
    assert "a: detected language: de" in err and "b: detected language: en" in err
    assert (report.seconds, report.stats.target_calls, report.summary()) == (6, 30, "")
    assert [each["text"] for each in json.loads(printed("abc", events, "json", capsys)[1])] == [
        "0a 0b",
        "1a 1b",
        "2a 2b",
    ]


def test_a_recording_that_fails_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    failed = TranscriptionEvent(0, [], 0.0, 0.0, None, error="a: no sound")
    events = [failed, *progress_of(1, ["eins"])]
    report, out, err = printed("ab", events, "txt", capsys)
    assert report.summary() == "1 of 2; failed: a" and out.endswith("<==\neins\n") and "error: a: no sound\n" in err
    assert json.loads(printed("ab", events, "json", capsys)[1])[0] == {"error": "a: no sound"}
    with pytest.raises(InputError, match="^a: no sound$"):
        printed("a", [failed], "txt", capsys)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("txt", "eins\n"),
        ("srt", "1\n00:00:00,000 --> 00:00:01,000\neins\n\n"),
        ("vtt", "WEBVTT\n\n00:00.000 --> 00:01.000\neins\n\n"),
    ],
)
def test_output_formats(name: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed("a", progress_of(0, ["eins"]), name, capsys)[1] == expected


def test_json_has_the_fields_of_openai_whisper(capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(printed("a", progress_of(0, ["eins"]), "json", capsys)[1])
    assert list(content) == ["text", "segments", "language"]
    assert list(content["segments"][0]) == [
        *("id", "seek", "start", "end", "text", "tokens", "temperature"),
        *("avg_logprob", "compression_ratio", "no_speech_prob"),
    ]


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
        output = Output(Report([JFK], shows_language=False), "txt")
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three tiny Whispers and the recordings a.wav and b.wav. `speech` has two languages."""
    folder = tmp_path_factory.mktemp("transcribe")
    for name in ("speech", "english", "german"):
        save_whisper(tiny_whisper(), folder / name, WHISPER)
    (folder / "english" / "generation_config.json").write_text('{"is_multilingual": false}')
    (folder / "german" / "generation_config.json").write_text('{"is_multilingual": true, "language": "german"}')
    for number, name in enumerate("ab"):
        samples = np.random.default_rng(number).normal(scale=0.1, size=9_600 + 8_000 * number)
        (folder / f"{name}.wav").write_bytes(wav(samples.astype(np.float32)))
    return folder


def run(
    arguments: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Transcribe in the folder; return the exit status, standard output and standard error."""
    monkeypatch.chdir(folder)
    words = arguments.split()
    try:
        status = transcribe.main(words if "--model" in words else [*words, "--model", "speech"])
    except SystemExit as exit:
        status = int(exit.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


GREEDY = "--baseline --temperature 0 -m 8 --no-speech-threshold none"


def test_files_are_transcribed_together_or_as_chunks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The statistics have the options of the transcription."""
    stats = tmp_path / "stats.json"
    found = {}
    for files in ("a.wav", "a.wav b.wav", "a.wav --chunked"):
        status, found[files], err = run(f"{files} {GREEDY} --stats-json {stats}", folder, monkeypatch, capsys)
        assert status == 0 and "detected language: " in err and "of audio in" in err and "tokens per call" in err
        content = json.loads(stats.read_text())
        assert content["target_calls"] and (content["temperature"], content["sample_len"]) == (0, 8)
        assert content["no_speech_threshold"] is None and content["slots"] == {"a.wav": 1, "a.wav b.wav": 2}.get(
            files, 8
        )
    assert content["audio"] == ["a.wav"] and content["audio_seconds"] == 0.6
    assert found["a.wav b.wav"].startswith(f"==> a.wav <==\n{found['a.wav']}\n==> b.wav <==\n")
    assert found["a.wav"] and found["a.wav --chunked"] == found["a.wav"]  # a window of this model is 0.6 s


@pytest.mark.parametrize("format", ["txt", "srt", "vtt", "json"])
def test_a_transcript_in_any_output_format_saves_calls(
    format: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stats, written = tmp_path / "stats.json", tmp_path / f"talk.{format}"
    options = f"b.wav {GREEDY} -m 16 --stats-json {stats} --output-format {format}"
    _, expected, _ = run(options, folder, monkeypatch, capsys)
    without = json.loads(stats.read_text())["target_calls"]
    written.write_text(expected)
    options = options.replace("--baseline", "--num-draft 15 --draft-text w5")
    status, found, err = run(f"{options} --draft-text-file {written}", folder, monkeypatch, capsys)
    content = json.loads(stats.read_text())
    assert (status, found) == (0, expected) and "2 draft texts" in err
    assert content["target_calls"] < without and content["draft_text_sha256"]


def test_options_of_subtitles_turn_word_times_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(f"b.wav {GREEDY} --output-format srt --max-words-per-line 1", folder, monkeypatch, capsys)[1]
    out = run(f"b.wav {GREEDY} --output-format json --word-timestamps", folder, monkeypatch, capsys)[1]
    words = [word["word"].strip() for segment in json.loads(out)["segments"] for word in segment["words"]]
    assert words and [cue.split("\n", 2)[2] for cue in found.split("\n\n")[:-1]] == words


def test_a_draft_text_that_cannot_be_used_is_refused_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {
        "--draft-text-file missing.srt": "--draft-text-file: missing.srt: not readable",
        "--draft-text-file a.wav": "--draft-text-file: a.wav: not readable as UTF-8",
        "--draft-text a --num-beams 2": "cannot be combined with --num-beams 2",
        "--draft-text a --drafter none": "--draft-text: has no effect with --drafter none",
    }
    for arguments, words in cases.items():
        status, out, err = run(f"a.wav {arguments}", folder, monkeypatch, capsys)
        assert (status, out, err.count("\n")) == (2, "", 1) and words in err, err


@pytest.mark.parametrize(
    ("arguments", "is_shown"),
    [
        ("--model english", False),
        ("--source-language German", False),
        ("--model german", False),
        ("--model german --source-language none", True),
    ],
)
def test_only_a_detected_language_is_printed(
    arguments: str,
    is_shown: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, err = run(f"a.wav {arguments} {GREEDY}", folder, monkeypatch, capsys)
    assert status == 0 and ("detected" in err) == is_shown


def test_flags_become_options() -> None:
    flags = (
        "--task translate --word-timestamps --no-condition-on-previous-text --temperature 0.5 --top-k 3 -m 40 "
        "--source-language none --no-speech-threshold none"
    )
    chosen = transcribe.transcribe_parser("transcribe").parse_args([JFK, *flags.split()])
    assert transcribe.transcription_options(vars(chosen)) == {
        "task": "translate",
        "word_timestamps": True,
        "condition_on_previous_text": False,
        "temperature": 0.5,
        "sample_len": 40,
        "language": None,
        "no_speech_threshold": None,
    }


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


@pytest.mark.parametrize("arguments", ["-", "a.wav -"])
def test_standard_input_is_a_recording(
    arguments: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = run(arguments.replace("-", "b.wav") + f" {GREEDY}", folder, monkeypatch, capsys)[1]
    with open(folder / "b.wav", "rb") as file, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", SimpleNamespace(buffer=file, isatty=lambda: False))
        found = run(f"{arguments} {GREEDY}", folder, monkeypatch, capsys)
    assert found[:2] == (0, expected.replace("b.wav", "-"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    status, _, err = run("-", folder, monkeypatch, capsys)
    assert status == 2 and "FILE: - reads standard input, which is a terminal; redirect a file to it" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nowhere.wav", "nowhere.wav: cannot be read (No such file or directory); name an audio file"),
        (
            "a.wav --output-format text",
            "--output-format/-f: must be one of txt, srt, vtt, tsv, json, or several, separated by commas "
            "(txt,srt,vtt,tsv,json for all), not 'text'",
        ),
        ("a.wav -f all", "separated by commas (txt,srt,vtt,tsv,json for all), not 'all'"),
        ("a.wav --highlight-words", "--highlight-words: has no effect on txt; choose srt or vtt, or leave it out"),
        (
            "a.wav --output-format srt --max-line-count 2",
            "--max-line-count: has no effect without --max-line-width; give both",
        ),
        ("nowhere.wav speech/config.json", "FILE: none of the files can be read (nowhere.wav: "),
        ("", "FILE: is missing; name a file, or transcribe live speech with --live"),
        ("a.wav --slots 2", "--slots: has no effect without --chunked or several files"),
        ("a.wav --prompt x", "--prompt: unknown option"),
        (
            "a.wav b.wav --output-format vtt",
            "--output-format: vtt is printed for one file (got 2); write files with --output-dir",
        ),
        ("a.wav b.wav --chunked", "--chunked: is for one file (got 2)"),
        ("a.wav --chunked --clip-timestamps 1", "--clip-timestamps: cannot be combined with --chunked"),
        ("a.wav --hallucination-silence-threshold 1", "has no effect without --word-timestamps"),
        ("a.wav --temperature 0 --compression-ratio-threshold 2", "has no effect with --temperature"),
        ("a.wav --temperature 0.5 --num-beams 5", "--num-beams: 5 has no effect at --temperature 0.5"),
        ("a.wav --carry-initial-prompt", "--carry-initial-prompt: has no effect without --initial-prompt"),
        ("a.wav --source-language xx", "--source-language: 'xx' is unknown; choose one of the 2 languages"),
        ("a.wav --stats-json a.wav", "is already used by FILE; name another"),
        ("a.wav --stats-json /nowhere/a.json", "--stats-json: /nowhere/a.json cannot be written"),
        (
            "a.wav --model t5-web-docs",
            "--model: t5-web-docs reads text and cannot transcribe; name a speech model, such",
        ),
        ("a.wav --model english --task translate", "--task: this model knows English only"),
        ("a.wav --model english --source-language de", "--source-language: this model knows English only, not 'de'"),
    ],
)
def test_unsuitable_flags_files_and_models_are_one_line(
    arguments: str,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, err = run(arguments, folder, monkeypatch, capsys)
    assert status == 2 and not out and message in err and err.count("\n") == 1
