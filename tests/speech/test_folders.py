"""Folders of recordings: which are found, what their outputs are called, and what a second run does."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import load
from speculative_decoding.cli import programs
from speculative_decoding.cli.flags import identity
from speculative_decoding.errors import InputError
from speculative_decoding.loading.pair import ModelPair
from speculative_decoding.runs import log as log_module
from speculative_decoding.runs.log import Log
from speculative_decoding.runs.places import folded
from speculative_decoding.speech.formats import FORMATS
from speculative_decoding.speech.logs import LOG_FORMAT, Ledger, Source, Written
from speculative_decoding.speech.media_files import output_names, recordings_in, without_repeats
from speculative_decoding.speech.output_folder import LEDGER
from speculative_decoding.speech.transcription import write
from tests.support.kill_states import KillStates
from tests.support.processes import launch
from tests.support.speech import noise, wav
from tests.support.tiny import WHISPER, save_whisper, tiny_whisper

Command = Callable[[str], tuple[int, str, str]]

NAMES = {
    "a.wav b/c.wav": "a c",
    "a.wav a.mp3 b.wav": "a.wav a.mp3 b",
    "x/a.wav x/y/a.wav": "a y/a",
    "x/a.wav y/a.mp3": "a.wav a.mp3",
    "x/a.wav x/a.mp3 y/a.wav": "x/a.wav x/a.mp3 y/a.wav",
    "a.wav A.mp3": "a.wav A.mp3",
    "x/\u00e9.wav y/e\u0301.wav": "x/\u00e9 y/e\u0301",  # the same letter in two forms
    "a.wav a.mp3 x/a.wav.mp3": "a.wav a.mp3 a.wav.mp3",  # the outputs of two recordings would be a.wav.txt
    ".wav a.": ".wav a.",
}


@pytest.mark.parametrize("recordings", NAMES, ids=ascii)
def test_names_keep_no_more_of_a_path_than_they_need(recordings: str) -> None:
    assert " ".join(output_names([f"/talks/{each}" for each in recordings.split(" ")])) == NAMES[recordings]


def test_names_differ_on_every_file_system_and_depend_on_no_order() -> None:
    rng = random.Random(5)
    for _ in range(300):
        parts = ["".join(rng.choices("aAeE\u0301\u00e9.", k=rng.randint(1, 3))) for _ in range(3)]
        paths = {f"/r/{'/'.join(rng.choices(parts, k=rng.randint(0, 2)))}/{rng.choice(parts)}.wav" for _ in range(6)}
        paths = {os.path.normpath(each) for each in paths if "/.." not in each and "/./" not in each}
        paths |= {f"{each}.mp3" for each in [*paths][:2]}
        if not paths:
            continue
        recordings = sorted(paths)
        names = output_names(recordings)
        assert len(set(map(folded, names))) == len(names), recordings
        assert dict(zip(reversed(recordings), output_names(recordings[::-1]), strict=True)) == dict(
            zip(recordings, names, strict=True)
        )


def test_a_folder_is_its_recordings_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden files, the outputs, other files and loops of links are left out. Nothing is found twice."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.WAV", "a/z.mp3", "a/b/y.opus", "a/.x.wav", "a/.git/x.wav", "a/notes.txt", "out/x.wav", "0.mkv"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    Path("a/loop").symlink_to("..")
    Path("a/b/self").symlink_to("self")
    Path("link.wav").symlink_to("b.WAV")
    found = ["./0.mkv", "./b.WAV", "./link.wav", "./a/z.mp3", "./a/b/y.opus"]
    assert recordings_in(["."], Path("out")) == found
    assert recordings_in(["out", "nowhere.wav"], Path("out")) == ["out/x.wav", "nowhere.wav"]
    assert without_repeats([*found, "0.mkv", "a/../a/z.mp3", str(tmp_path / "b.WAV"), "no", "no"]) == [*found, "no"]
    Path("loop.wav").symlink_to("loop.wav")
    assert identity("loop.wav") != identity("b.WAV")
    Path("empty").mkdir()
    with pytest.raises(InputError, match="^audio: empty is a folder without recordings; name its files"):
        recordings_in(["b.WAV", "empty"])


def test_a_folder_that_cannot_be_read_is_found_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is then printed like any recording's."""

    def scandir(path: str) -> Any:
        raise PermissionError

    monkeypatch.setattr(os, "scandir", scandir)
    assert recordings_in([str(tmp_path)]) == [str(tmp_path)]


def test_placeholders_of_icloud_and_folders_without_permission_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("in/a.wav", "in/.talk.m4a.icloud", "in/.notes.txt.icloud", "in/.icloud", "in/closed/b.wav"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    Path("in/broken.mp3").symlink_to("nowhere")
    stat = os.stat

    def guarded(path: Any, **options: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", guarded)
    assert recordings_in(["in"]) == ["in/.talk.m4a.icloud", "in/a.wav", "in/broken.mp3", "in/closed"]


LONG = {  # a stem, and the last bytes that are left of it; 232 bytes fit, with a temporary suffix and ".json"
    "x" * 232: "x" * 232,
    "x" * 251: "x" * 223 + ".",
    "\u00e9" * 125: "\u00e9" * 111 + ".",
    "\u65e5" * 83: "\u65e5" * 74 + ".",
    "\U0001f600" * 62: "\U0001f600" * 55 + ".",
}


@pytest.mark.parametrize("stem", LONG, ids=lambda stem: f"{stem[0]!a} {len(stem)}")
def test_a_long_name_is_shortened_between_characters(stem: str) -> None:
    (name,) = output_names([f"/talks/{stem}.wav"])
    assert name.startswith(LONG[stem]) and len(os.fsencode(f".{name}.json.partial-12345678")) <= 255
    assert len(name) == len(LONG[stem]) + (8 if LONG[stem].endswith(".") else 0)
    others = output_names([f"/talks/{stem}.wav", f"/talks/{stem}.mp3", f"/talks/{stem[:-1]}y.mp3", "/talks/x/y.mp3"])
    assert len(set(map(folded, others))) == 4


def test_finished_outputs_keep_their_names() -> None:
    recordings = ["/t/a.mp3", "/t/a.wav", "/t/x/a.mp3", "/t/b.wav"]
    usual = output_names(recordings)
    for number, name in enumerate(usual):  # killed after one: the others have the names of an undisturbed run
        assert output_names(recordings, {recordings[number]: name}) == usual
    names = output_names(recordings, {"/t/a.mp3": "a"})  # transcribed before the others were there
    assert names[0] == "a" and len(set(map(folded, names))) == 4
    assert output_names(["/t/a.mp3", "/t/a.wav"], {"/t/a.mp3": "a.wav"})[0] == "a.wav"


@contextmanager
def opened(path: Path) -> Iterator[Ledger]:
    with Log.open(path, LOG_FORMAT) as log:
        yield Ledger(log)


TALK, OTHER = Source("../a.wav", 5, 7), Source("../b.wav", 5, 7)


def test_an_output_belongs_to_the_recording_that_was_finished_last(tmp_path: Path) -> None:
    path = tmp_path / LEDGER
    with opened(path) as ledger:
        ledger.begin(TALK, {"A.txt": Written("s", "1")})
        assert ledger.finished("A.txt") is None and ledger.has_written("A.txt", "1")
        ledger.finish(TALK, {"A.txt": Written("s", "1")})
        with pytest.raises(InputError, match="another run is writing it; wait, or name another output_dir"):
            opened(path).__enter__()
    with opened(path) as ledger:
        assert ledger.finished("A.txt") == ledger.finished("a.txt") == (TALK, "s")
        ledger.begin(OTHER, {"a.txt": Written("s", "2")})
    with opened(path) as ledger:
        assert ledger.finished("a.txt") is None and ledger.has_written("a.txt", "1")


# Of version 0.3.0 before the logs of all commands became one.
EARLIER = """{"version": 1, "path": "../a.wav", "size": 5, "mtime_ns": 7, \
"outputs": {"a.txt": {"settings": "s", "sha256": "1"}}, "status": "writing"}
{"version": 1, "path": "../a.wav", "size": 5, "mtime_ns": 7, \
"outputs": {"a.txt": {"settings": "s", "sha256": "1"}}, "status": "done"}
"""


def test_the_ledger_of_an_earlier_version_is_continued_and_has_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "old").write_text(EARLIER)
    with opened(tmp_path / "old") as ledger:
        assert ledger.finished("a.txt") == (TALK, "s") and ledger.has_written("a.txt", "1")
        ledger.begin(TALK, {"b.txt": Written("s", "2")})
    assert (tmp_path / "old").read_text().startswith(EARLIER)
    with opened(tmp_path / "new") as ledger:
        ledger.begin(TALK, {"a.txt": Written("s", "1")})
        ledger.finish(TALK, {"a.txt": Written("s", "1")})
    assert (tmp_path / "new").read_text() == EARLIER


def test_damage_of_a_ledger_costs_only_its_lines(tmp_path: Path) -> None:
    path = tmp_path / LEDGER
    with opened(path) as ledger:
        for number in range(3):
            ledger.finish(TALK, {f"{number}.txt": Written("s", "1")})
    first, second, third = path.read_bytes().splitlines(keepends=True)

    def finished() -> str:
        with opened(path) as ledger:
            ledger.finish(OTHER, {"new.txt": Written("s", "1")})
        with opened(path) as ledger:
            assert ledger.finished("new.txt") == (OTHER, "s")
            return "".join(each for each in "012" if ledger.finished(f"{each}.txt") == (TALK, "s"))

    for content, expected in {
        first + second + third[:-1]: "01",
        first + second[:30] + b"\n" + third: "02",
        first + b"[" * 100_000 + b"\n" + third: "02",
        first + second.replace(b'"version": 1', b'"version": 9') + third: "02",
        first + second.replace(b'"size": 5', b'"size": 1e999') + third: "02",
        first + b"\xff\n{}\nnull\n" + second + bytes(50): "01",
        first[:5]: "",
        bytes(9): "",
        b"": "",
    }.items():
        path.write_bytes(content)
        assert finished() == expected, content[:200]
    path.write_text("my notes\n")
    with pytest.raises(InputError, match="is needed to record what is finished, but is another file"):
        opened(path).__enter__()
    assert path.read_text() == "my notes\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_whisper(tiny_whisper(), tmp_path_factory.mktemp("models") / "speech", WHISPER)


@pytest.fixture
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with three recordings in the folder `in`."""
    for number, name in enumerate(("in/a.wav", "in/x/b.wav", "in/x/y/a.wav")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(wav(noise(number, 0.5)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


OPTIONS = "--num-draft 2 --temperature 0 -m 8 --no-speech-threshold none --dtype float32 --source-language en"


@pytest.fixture
def transcribe(model: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run the command in this process. Returns exit status, standard output and standard error."""

    def call(arguments: str) -> tuple[int, str, str]:
        try:
            status = programs.main(["transcribe", "--model", str(model), *f"{OPTIONS} {arguments}".split()])
        except SystemExit as exit:  # raised by argparse
            status = int(exit.code or 0)
        return status, *capfd.readouterr()

    return call


def content(folder: str | Path) -> dict[str, bytes]:
    """Return every file of a folder, except for the ledger."""
    paths = [path for path in Path(folder).rglob("*") if path.is_file() and path.name != LEDGER]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


ALL = "in --output-dir out --output-format txt,srt,vtt,tsv,json"


def test_the_files_are_those_of_openai_whisper_for_each_recording(
    talks: Path, transcribe: Command, model: Path
) -> None:
    status, out, said = transcribe(f"{ALL} --stats-json stats.json")
    assert (status, out) == (0, "") and "0:01 of audio in " in said, said
    session = load(model, dtype="float32", drafter="none")
    options = {"temperature": 0.0, "sample_len": 8, "no_speech_threshold": None, "language": "en"}
    results = {name: session.transcribe(f"in/{name}.wav", **options) for name in ("a", "x/b", "x/y/a")}
    expected = {"a": "a", "x/b": "b", "x/y/a": "x/y/a"}
    assert content("out") == {
        f"{expected[name]}.{each}": write(each, result).encode() for name, result in results.items() for each in FORMATS
    }
    assert json.loads(Path("stats.json").read_text())["audio"] == ["in/a.wav", "in/x/b.wav", "in/x/y/a.wav"]
    status, out, _ = transcribe("in")
    texts = [write("txt", result) for result in results.values()]
    assert (status, out) == (
        0,
        f"==> in/a.wav <==\n{texts[0]}\n==> in/x/b.wav <==\n{texts[1]}\n==> in/x/y/a.wav <==\n{texts[2]}",
    )


def test_only_what_is_missing_or_changed_is_transcribed(
    talks: Path, transcribe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts and slots are no change. What a user has edited stays."""
    written: list[str] = []
    begin = Ledger.begin

    def noted(self: Ledger, source: Source, outputs: Mapping[str, Written]) -> None:
        written.extend(outputs)
        begin(self, source, outputs)

    monkeypatch.setattr(Ledger, "begin", noted)

    def done(arguments: str) -> list[str]:
        written.clear()
        status, _, said = transcribe(arguments)
        assert status == 0, said
        return sorted(written)

    run = "in -o out -f txt"
    assert done(run) == ["a.txt", "b.txt", "x/y/a.txt"]
    with monkeypatch.context() as patch:
        patch.setattr(ModelPair, "load_weights", None)
        for same in ("", "--slots 2", "--num-draft 3", "--baseline --num-draft 0"):
            status, _, said = transcribe(f"{run} {same}")
            assert status == 0 and "3 of 3 recordings are finished in out" in said
    Path("out/a.txt").unlink()
    assert done(run) == ["a.txt"]
    Path("out/a.txt").write_text("edited")
    assert done("in -o out -f txt,srt") == ["a.srt", "b.srt", "x/y/a.srt"] and content("out")["a.txt"] == b"edited"
    Path("in/x/b.wav").write_bytes(wav(noise(9, 1.1)))
    before = content("out")["b.txt"]
    assert done("in -o out -f txt,srt") == ["b.srt", "b.txt"] and content("out")["b.txt"] != before
    Path("in/x/c.wav").write_bytes(wav(noise(8, 0.5)))
    assert done("in -o out -f txt -f srt") == ["c.srt", "c.txt"]
    wide = "in -o out -f txt,srt --word-timestamps"
    status, _, said = transcribe(wide)
    assert status == 2 and "--output-dir: out/a.txt exists, and is not what an earlier run has written; move it" in said
    Path("out/a.txt").unlink()
    assert len(done(wide)) == 8 and done(wide) == []
    assert len(done(f"{wide} --max-words-per-line 2")) == 4  # subtitles only
    assert len(done(f"{run} --force")) == 4


def test_bad_files_are_a_line_each_and_are_tried_again(talks: Path, transcribe: Command) -> None:
    expected_status, _, _ = transcribe(f"{ALL} --force")
    expected = content("out")
    shutil.rmtree("out")
    Path("in/broken.mp3").write_bytes(b"ID3" + bytes(100))
    Path("in/silent.wav").write_bytes(wav(noise(0, 0.7)[:0]))
    for _ in range(2):
        status, out, said = transcribe(f"in/missing.wav {ALL}")
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        assert (status, out, len(errors)) == (1, "", 3) and content("out") == expected, said
        assert all(any(name in line for line in errors) for name in ("broken.mp3", "silent.wav", "missing.wav"))
    assert expected_status == 0


def test_a_long_name_stops_no_folder_and_the_last_line_names_what_failed(talks: Path, transcribe: Command) -> None:
    Path("in", "y" * 251 + ".wav").write_bytes(wav(noise(4, 0.5)))
    Path("in/.talk.m4a.icloud").touch()
    Path("in/empty.mp3").touch()
    for _ in range(2):
        status, out, said = transcribe(f"in in/missing.wav {ALL}")
        assert (status, out) == (1, "") and "Traceback" not in said
        last = said.splitlines()[-1]
        assert last == "4 of 7; failed: in/.talk.m4a.icloud, in/empty.mp3, in/missing.wav"
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        assert len(errors) == 3 and "error: in/empty.mp3: is empty; name another file" in errors
    assert len([name for name in content("out") if name.startswith("y" * 200)]) == len(FORMATS)
    status, _, said = transcribe("in/a.wav in/empty.mp3")
    assert status == 1 and said.splitlines()[-1] == "1 of 2; failed: in/empty.mp3"


def test_a_second_recording_of_the_same_stem_changes_no_finished_output(talks: Path, transcribe: Command) -> None:
    shutil.rmtree("in/x")
    assert transcribe("in -o out -f txt,srt")[0] == 0
    before = {name: Path("out", name).stat() for name in content("out")}
    assert before.keys() == {"a.txt", "a.srt"}
    Path("in/a.flac").write_bytes(wav(noise(9, 0.5)))
    for _ in range(2):
        status, _, said = transcribe("in -o out -f txt,srt")
        assert status == 0 and "of 2 recordings are finished in out" in said
        assert content("out").keys() == {"a.txt", "a.srt", "a.flac.txt", "a.flac.srt"}
        assert {name: Path("out", name).stat() for name in before} == before
    assert "2 of 2 recordings" in said


REFUSED = {
    "in -f txt,srt": "--output-format: several formats need a folder (got txt, srt); name one with --output-dir",
    "in -f srt": "--output-format: srt is printed for one file (got 3); write files with --output-dir",
    "in -o out -f txt,txt": "--output-format: txt is named twice",
    "in -o out -f txt -f txt": "--output-format: txt is named twice",
    "in --force": "--force: has no effect without --output-dir",
    "in -o out --chunked": "--chunked: is for one file (got 3)",
    "- -o out": "--output-dir: - has no name for a file in a folder; leave it out",
    "in -o in/a.wav": "--output-dir: in/a.wav is not a folder",
    "in -o in/a.wav/out": "is not a folder",
    "in -o out --stats-json out/a.txt": "--stats-json: out/a.txt cannot be written",
    "in/x -o . --stats-json b.txt": "--output-dir: b.txt is already used by --stats-json; name another",
    "in/x -o . --stats-json .transcribe.jsonl": "--output-dir: .transcribe.jsonl is already used by --stats-json",
    "talk.txt -o .": "--output-dir: talk.txt is already used by FILE; name another",
    "in -o old": "--output-dir: old/b.txt exists, and is not what an earlier run has written",
    "in -o folders": "--output-dir: folders/b.txt is not a regular file; move it, or name another --output-dir",
    "in -o folders --force": "--output-dir: folders/b.txt is not a regular file",
    "in -o file": "--output-dir: file/x/y is not a folder",
    "empty -o out": "FILE: empty is a folder without recordings",
    "in/x/b.wav -o out --slots 2": "--slots: has no effect without --chunked or several files",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_bad_arguments_are_one_line_before_weights_load(
    arguments: str, talks: Path, transcribe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelPair, "load_weights", None)
    for folder in ("old", "folders/b.txt", "file/x", "empty"):
        Path(folder).mkdir(parents=True)
    Path("old/b.txt").write_text("mine")
    Path("file/x/y").touch()
    Path("talk.txt").touch()
    before = content(".")
    status, out, said = transcribe(arguments)
    (line,) = [line for line in said.splitlines() if not line.startswith("target ")]
    assert (status, out) == (2, "") and REFUSED[arguments] in line, line
    assert content(".") == before


def test_a_file_that_cannot_be_read_is_not_replaced(
    talks: Path, transcribe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise PermissionError

    Path("out").mkdir()
    Path("out/b.txt").write_text("mine")
    monkeypatch.setattr(hashlib, "file_digest", unreadable)
    status, _, said = transcribe("in/x/b.wav -o out")
    assert status == 2 and "--output-dir: out/b.txt exists, and is not what an earlier run has written" in said
    assert content("out") == {"b.txt": b"mine"}


def test_a_transcript_of_another_recording_is_replaced_only_by_force(talks: Path, transcribe: Command) -> None:
    assert transcribe("in/a.wav -o out -f json")[0] == 0
    first = content("out")
    status, _, said = transcribe("in/x/y -o out -f json")
    assert status == 2 and "out/a.json is the transcript of in/a.wav; move it, name another --output-dir, or" in said
    assert transcribe("in/x/y -o out -f json --force")[0] == 0 and content("out") != first
    assert transcribe("in/x/y -o out -f json")[0] == 0
    forced = content("out")["a.json"]
    assert transcribe("in/a.wav in/x/y -o out -f json")[0] == 0  # a finished output keeps its name
    assert content("out") == {"a.json": forced, "a.wav.json": first["a.json"]}


@pytest.mark.parametrize("chunked", ["", "--chunked"])
def test_ctrl_c_keeps_what_is_finished(
    chunked: str, talks: Path, transcribe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    files = "in/a.wav" if chunked else "in"
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "finish", interrupt)
        status, _, said = transcribe(f"{files} -o out {chunked}")
    assert status == 130 and "transcribe: interrupted; run the same command again to continue" in said
    assert transcribe(f"{files} -o out {chunked}")[0] == 0 and transcribe(f"{files} -o whole {chunked}")[0] == 0
    assert content("out") == content("whole")


def test_every_state_of_a_killed_run_is_continued_with_the_same_bytes(
    talks: Path, transcribe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree("in/x/y")
    states = KillStates(talks / "out", talks / "states")
    with monkeypatch.context() as patch:
        states.around(patch, log_module, "write_all")
        states.around(patch, os, "fsync")
        assert transcribe("in -o out -f srt,json --slots 1")[0] == 0
    expected = content("out")
    assert len(states.paths) >= 24 and any(".partial-" in name for path in states.paths for name in content(path))
    random.Random(5).shuffle(states.paths)
    for path in states.paths[:4]:
        status, _, said = transcribe(f"in -o {path} -f srt,json")
        assert status == 0 and content(path) == expected, said


def test_a_full_disk_is_one_line_and_leaves_whole_files(
    talks: Path, transcribe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    assert transcribe("in -o whole")[0] == 0
    for place in (
        "speculative_decoding.runs.log.write_all",
        "speculative_decoding.runs.places.atomic_file",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, full)
            status, _, said = transcribe("in -o out")
        errors = [line for line in said.splitlines() if "error" in line]
        assert status == 2 and len(errors) == 1 and "No space left on device); what is finished is kept" in errors[0]
        assert not content("out")
    assert transcribe("in -o out")[0] == 0 and content("out") == content("whole")


WRITES = ("fsync", "replace", "truncate", "unlink", "write")


def transcribe_until(arguments: list[str], kill_at: int) -> None:
    """Run the command, and kill this process before the n-th write (0: never). Prints the number of writes."""
    writes = 0

    def hook(frame: Any, event: str, function: Any) -> None:
        nonlocal writes
        if event == "c_call" and function.__name__ in WRITES:
            writes += 1
            if writes == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(hook)
    status = programs.main(["transcribe", *arguments])
    sys.setprofile(None)
    print(writes, flush=True)
    os._exit(status)


@pytest.mark.slow
def test_twelve_recordings_killed_three_times_give_the_same_bytes(talks: Path, model: Path) -> None:
    """Two more cannot be transcribed. The fourth run has the exit status and the errors of an undisturbed one."""
    rng = random.Random(7)
    shutil.rmtree("in")
    for number in range(12):
        path = Path("in", *["one", "two", "three"][: number % 4], f"{number}.wav" if number % 3 else "talk.wav")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wav(noise(number, 0.5 + 0.4 * (number % 3))))
    Path("in/broken.mp3").write_bytes(b"ID3" + bytes(100))
    Path("in/silent.wav").write_bytes(wav(noise(0, 0.7)[:0]))
    options = [
        *OPTIONS.replace("--num-draft 2", "--baseline").split(),
        "--model",
        str(model),
        "--slots",
        "3",
        "-f",
        "txt,srt,vtt,json",
    ]

    def run(folder: str, kill_at: int = 0) -> tuple[int | None, str, list[str]]:
        out, said = talks / "printed", talks / "said"
        arguments = ["in", "-o", folder, *options]
        process = launch(transcribe_until, arguments, kill_at, out=out, said=said, folder=talks)
        process.join()
        errors = [line for line in said.read_text().splitlines() if "error" in line or "Traceback" in line]
        return process.exitcode, out.read_text(), errors

    status, writes, errors = run("whole")
    whole = content("whole")
    assert (status, len(errors), len(whole)) == (1, 2, 48)
    for _ in range(3):
        assert run("out", rng.randint(1, int(writes) // 4))[0] == -signal.SIGKILL
        found = content("out").items()
        assert {each for each in found if ".partial-" not in each[0] and not each[0].startswith(".transcribe.")} <= (
            whole.items()
        )
    assert run("out")[::2] == (status, errors) and content("out") == whole
