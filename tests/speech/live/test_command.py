"""`transcribe --live`: what is printed, when it ends, and which flags are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import load
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.errors import InputError
from speculative_decoding.speech import command as transcribe
from speculative_decoding.speech.live.arriving import Arriving, Chunk
from speculative_decoding.speech.live.command import LiveOutput
from speculative_decoding.speech.live.sources import LiveSource
from speculative_decoding.speech.live.update import LiveUpdate
from tests.support.paths import ROOT
from tests.support.speech import noise, wav
from tests.support.terminal import Screen
from tests.support.tiny import WHISPER, save_whisper, tiny_whisper

SOUND = noise(3, 0.6)  # less than a second, so that what is decoded does not depend on when it arrives
PCM = (SOUND * 32768).astype("<i2").tobytes()
OPTIONS = ["--model", "speech", "--baseline", "-m", "8", "--no-speech-threshold", "none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Whisper of two languages, and a recording."""
    folder = tmp_path_factory.mktemp("live")
    save_whisper(tiny_whisper(), folder / "speech", WHISPER)
    (folder / "a.wav").write_bytes(wav(SOUND))
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> str:
    """The text of the recording in Python, without a thread."""
    session = load(folder / "speech", drafter="none")
    updates = session.transcribe_live([PCM], reads_ahead=False, sample_len=8, no_speech_threshold=None)
    return "".join(each.final for each in updates)


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def run(words: list[str]) -> int:
    try:
        return transcribe.main(words)
    except SystemExit as exit:
        return int(exit.code or 0)


def text_of(lines: str) -> str:
    """Return the final text. Nothing may be pending at the end."""
    found = [json.loads(line) for line in lines.splitlines()]
    assert all(list(each) == ["final", "pending"] for each in found) and not found[-1]["pending"]
    return "".join(each["final"] for each in found)


def test_a_file_and_a_pipe_have_the_text_that_python_returns(
    expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stats = tmp_path / "stats.json"
    reading, writing = os.pipe()
    os.write(writing, PCM + b"\x01")
    os.close(writing)
    for arguments in (["--live", "a.wav", "--live-speed", "1e9"], ["--live", "-"]):
        with open(reading) if arguments[1] == "-" else open(os.devnull) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            assert run([*arguments, *OPTIONS, "--stats-json", str(stats)]) == 0
        out, err = capsys.readouterr()
        assert expected and text_of(out) == expected
        for words in ("listening to ", "detected language: ", "0.6 s of audio; 2 hypotheses took ", "tokens per call"):
            assert words in err
        content = json.loads(stats.read_text())
        assert content["live"] == {"-": "standard input"}.get(arguments[1], "a.wav")
        assert (content["audio_seconds"], content["hypotheses"], content["dropped_seconds"]) == (0.6, 2, 0)
        assert content["target_calls"] and content["sample_len"] == 8


def with_source(chunks: Iterator[Chunk], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(
        transcribe, "open_live", lambda name, speed, track: LiveSource("microphone", chunks, can_wait=False)
    )
    return run(["--live", "microphone", *OPTIONS])


def test_ctrl_c_makes_the_rest_final(
    expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chunks() -> Iterator[Chunk]:
        yield PCM
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            yield b""

    assert with_source(chunks(), monkeypatch) == 130
    out, err = capsys.readouterr()
    assert text_of(out) == expected and "hypotheses" in err and "interrupted" not in err


def test_a_source_that_fails_makes_the_rest_final(
    expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def chunks() -> Iterator[Chunk]:
        yield PCM
        raise InputError("the device is gone", way_out="connect it")

    assert with_source(chunks(), monkeypatch) == 2
    out, err = capsys.readouterr()
    assert text_of(out) == expected
    assert err.endswith("error: the device is gone; connect it\n") and "hypotheses" in err


def test_silence_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert with_source(iter([bytes(16_000)]), monkeypatch) == 0
    out, err = capsys.readouterr()
    assert not out and err.endswith(
        "\n0.5 s of audio, all of it below -60 dBFS, which counts as silence; check the source\n"
    )


def update(final: str, pending: str = "", seconds: float = 1.0) -> LiveUpdate:
    stats = GenerationStats(generated_tokens=6, target_calls=2, encode_seconds=0.25, decode_seconds=0.25)
    return LiveUpdate(final, pending, seconds, stats, "de")


UPDATES = [update("", " eins"), update(" eins", " zwei", 2.0), update(" zwei", seconds=4.0)]


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_a_terminal_that_can_rewrite_text_shows_no_json(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", kind)
    screen = Screen(80, 24)
    screen.isatty = lambda: True  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stdout", screen)
    output = LiveOutput(Arriving([]), shows_language=False)
    output.print(UPDATES)
    assert screen.text(dim=False) == (
        ["eins zwei", ""]
        if kind == "xterm"
        else [*(json.dumps({"final": each.final, "pending": each.pending}) for each in UPDATES), ""]
    )


def test_what_is_dropped_is_said_once_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    arriving = Arriving([])
    output = LiveOutput(arriving, shows_language=True)

    def updates() -> Iterator[LiveUpdate]:
        for each in UPDATES:
            yield each
            arriving.dropped_samples += 8000

    output.print(updates())
    assert capsys.readouterr().err == (
        "detected language: de\n"
        "note: speech arrives faster than this model transcribes, so some is dropped; use a smaller one\n"
    )
    assert output.summary() == (
        "4.0 s of audio; 3 hypotheses took 1.5 s (0.38 of real time); 1.5 s of sound were dropped"
    )
    found = output.as_dict()
    assert (found["busy_seconds"], found["dropped_seconds"], found["target_calls"]) == (1.5, 1.5, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--live nowhere.wav", "--live: nowhere.wav: no such file; name an audio file, microphone or -"),
        ("--live speech/config.json", "error: speech/config.json: "),
        ("--live a.wav a.wav", "FILE: has no effect with --live; leave it out"),
        ("--live - --output-format json", "--output-format: has no effect with --live; leave it out"),
        ("--live - --slots 2", "--slots: has no effect with --live"),
        ("--live - --word-timestamps", "--word-timestamps: has no effect with --live"),
        ("--live - --temperature 0", "--temperature: has no effect with --live"),
        ("--live - --num-beams 2", "--num-beams: has no effect with --live"),
        ("--live - --top-k 2", "--top-k: has no effect at --temperature 0"),
        ("--live - --live-speed 2", "--live-speed: has no effect with --live -; leave it out"),
        ("--live a.wav --live-speed 0", "--live-speed: must be a number, 0.1 to 1e+09, not '0'"),
        ("a.wav --live-speed 2", "--live-speed: has no effect without --live; give both, or leave it out"),
        ("--live a.wav --stats-json a.wav", "--stats-json: a.wav is already used by --live; name another"),
        ("--live a.wav --source-language xx", "--source-language: 'xx' is unknown"),
        ("--live a.wav --model t5-web-docs", "--model: t5-web-docs reads text and cannot transcribe"),
    ],
)
def test_unsuitable_flags_and_sources_are_one_line(
    arguments: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(os.devnull) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        words = arguments.split()
        status = run(words if "--model" in words else [*words, "--model", "speech"])
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1) and message in err, err


def start(**streams: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "speculative_decoding", "transcribe", "--live", "-", *OPTIONS]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **streams)


@pytest.mark.slow
def test_a_process_ends_while_its_pipe_stays_open() -> None:
    with start(stdout=subprocess.PIPE) as process:
        assert process.stderr is not None
        while b"listening" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait() == 130
    assert rest == b""


@pytest.mark.slow
def test_a_closed_output_ends_the_process_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with start(stdout=writing) as process:
        os.close(writing)
        _, err = process.communicate(PCM)
    assert process.returncode == 1 and b"Traceback" not in err and b"Error" not in err
