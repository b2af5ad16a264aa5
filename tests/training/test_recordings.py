"""Training a draft head of a speech model on transcribed recordings."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding import InputError, Session, load
from speculative_decoding.models.draft_head import DraftHead
from speculative_decoding.models.source import AudioFrames
from speculative_decoding.speech.recording import open_audio
from speculative_decoding.speech.speech_text import SpeechText
from speculative_decoding.training import command as train_command
from speculative_decoding.training import teacher
from speculative_decoding.training.outputs import Example, SpeechWindow
from speculative_decoding.training.recordings import Recording, Spoken, read_manifest
from speculative_decoding.training.teacher import TargetStore, Teacher, batch_ends
from speculative_decoding.training.windows import WindowMaker, write_windows
from tests.support.audio import sound
from tests.support.speech import END, ENGLISH, PREVIOUS, START, TRANSCRIBE, ZERO, Letters, speech_model
from tests.support.tiny import CONFIG, WHISPER, save_hugging_face, save_whisper, tiny_model, tiny_whisper

MODEL = speech_model()
NO_TIMESTAMPS, POSITIONS, SECONDS = ZERO - 1, 30, 0.6  # of a window
SEGMENTS = [(0.02, 0.2, "ab"), (0.24, 0.5, "cd"), (0.5, 0.9, "ef"), (1.0, 2.0, "much longer"), (2.02, 2.3, "g h")]


def write_recording(folder: Path, number: int) -> dict[str, Any]:
    """Write 2.4 s of sound. Returns its line of the manifest."""
    with wave.open(str(folder / f"{number}.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(np.roll(sound(2.4)[0], 1000 * number).tobytes())
    segments = [{"start": start, "end": end, "text": text} for start, end, text in SEGMENTS[number % 3 :]]
    return {"audio": f"{number}.wav", "language": "en", "segments": segments}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech")
    path = folder / "manifest.jsonl"
    path.write_text("\n\n".join(json.dumps(write_recording(folder, number)) for number in range(12)) + "\n")
    return path


def windows_in(folder: Path, manifest: Path) -> list[Example]:
    return write_windows(Session(MODEL, Letters()), read_manifest(manifest), folder, seed=0)


def frames_of(example: Example) -> Any:
    assert isinstance(example.source, SpeechWindow)
    return np.array(example.source.frames)


def test_windows_hold_whole_segments_and_their_frames(manifest: Path) -> None:
    recording = read_manifest(manifest)[0]
    text = SpeechText(Letters(), MODEL.audio)  # type: ignore[arg-type]
    mel = open_audio(recording.audio, [6])
    kinds = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        windows = [*WindowMaker(MODEL, text).windows(recording, [7, 8, 9] * 20, rng)]
        starts = (0, 50, 202)  # frames: after the last segment of the window before; the long segment is left out
        spoken = (SEGMENTS[:2], SEGMENTS[2:3], SEGMENTS[4:])
        for window, start, segments in zip(windows, starts, spoken, strict=True):
            is_timed = NO_TIMESTAMPS not in window.prefix
            before, begin = window.prefix[: -3 - (not is_timed)], window.prefix[-3 - (not is_timed) :]
            assert begin[:3] == [START, ENGLISH, TRANSCRIBE] and begin[3:] == [NO_TIMESTAMPS] * (not is_timed)
            assert not before or (before[0] == PREVIOUS and len(before) <= MODEL.max_positions // 2)  # type: ignore[operator]
            expected = [
                id
                for first, last, words in segments
                for id in (stamp(first, start), *text.encode(" " + words), stamp(last, start))
                if is_timed or id < ZERO
            ]
            assert window.output == [*expected, END]
            kinds.add((is_timed, bool(before)))

            frames = frames_of(window)
            assert frames.shape in ((60, 6), (38, 6)) and len(window.source) == len(frames) // 2
            count = {0: 50, 50: 50, 202: 38}[start]
            np.testing.assert_allclose(frames[:count], mel.frames(start, count), atol=1e-3)
            assert not frames[count:].any()
    assert len(kinds) == 4


def stamp(seconds: float, start: int) -> int:
    return ZERO + min(round((seconds - start / 100) * 50), POSITIONS)


def test_killed_writing_of_windows_continues(manifest: Path, tmp_path: Path) -> None:
    expected = windows_in(tmp_path, manifest)
    lines, frames = tmp_path / "windows.jsonl", tmp_path / "frames.bin"
    whole, content = lines.read_bytes(), frames.read_bytes()
    for cut, size in ((len(whole) // 2, len(content)), (10, len(content) - 7), (0, 100)):
        lines.write_bytes(whole[:cut])
        frames.write_bytes(content[:size])
        for found, other in zip(windows_in(tmp_path, manifest), expected, strict=True):
            assert (found.prefix, found.output) == (other.prefix, other.output)
            assert (frames_of(found) == frames_of(other)).all()
    frames.write_bytes(content[:-1])
    with pytest.raises(InputError, match="shorter than"):
        windows_in(tmp_path, manifest)
    header = whole[: whole.index(b"\n") + 1]
    for damaged in (b"[[3, [41]]]\n", b'[["x", [41], [41]]]\n', b"\xff\n", bytes(50)):
        lines.write_bytes(header + damaged + whole[len(header) :])
        frames.write_bytes(content)
        windows_in(tmp_path, manifest)
        assert (lines.read_bytes(), frames.read_bytes()) == (whole, content)


def test_targets_start_at_the_output(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the prefix and the other windows of a batch; also if batches are limited by their positions."""
    monkeypatch.setattr(teacher, "TEACHER_POSITIONS", 100)
    examples = sorted(windows_in(tmp_path, manifest), key=lambda each: len(each.source))
    ends = [0, *batch_ends(examples, 0)]
    assert ends[-1] == len(examples) and {3, 4} >= {b - a for a, b in pairwise(ends[:-1])}
    store = TargetStore(Teacher(MODEL, (0, 1)), examples)
    store.keep(tmp_path / "features")
    for example, found in zip(examples, store.get(range(len(examples))), strict=True):
        source = example.read_source()
        assert isinstance(source, AudioFrames)
        encoder_output = MODEL.encode(source.frames[None])
        hidden = MODEL.teacher_forced_hidden(mx.array([[*example.prefix, *example.output[:-1]]]), encoder_output)
        states = np.array(hidden[-1][0, len(example.prefix) - 1 :])
        states /= np.sqrt((states**2).mean(axis=-1, keepdims=True))
        np.testing.assert_allclose(found.hidden[:, 16:], states, atol=1e-2)
        np.testing.assert_allclose(found.encoder_output, encoder_output[0], atol=1e-2)
        likeliest = np.array(mx.argmax(MODEL.logits(MODEL.final_states(hidden[-1]))[0], axis=-1))
        best = np.take_along_axis(found.ids, np.argmax(found.probs, axis=-1)[:, None], axis=-1)[:, 0]
        assert (best == likeliest[len(example.prefix) - 1 :]).mean() > 0.9  # near-ties of half precision


@pytest.fixture
def command(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[int, str]]]:
    monkeypatch.setattr(train_command, "plot_curves", lambda *_: None)  # takes a second
    save_whisper(tiny_whisper(), tmp_path / "speech", WHISPER)
    save_hugging_face(tiny_model(), tmp_path / "text", CONFIG)
    (tmp_path / "prompts.txt").write_text("a\n" * 40)

    def call(model: str = "speech", source: str = "manifest", *more: str) -> tuple[int, str]:
        words = ["--model", str(tmp_path / model), "--output", str(tmp_path / "head"), "--steps", "4", *more]
        files = {
            "manifest": ["--audio-manifest", str(manifest)],
            "prompts": ["--prompts", str(tmp_path / "prompts.txt")],
        }
        status = train_command.main([*files[source], "--batch-size", "6", "--held-out", "1", *words])
        return status, capsys.readouterr().err

    yield call


def test_command_trains_a_head_that_transcribes(
    command: Callable[..., tuple[int, str]], manifest: Path, tmp_path: Path
) -> None:
    status, err = command()
    assert status == 0 and "11 training recordings, 1 held out" in err and "manifest.jsonl: " in err
    session = load(tmp_path / "speech", draft=tmp_path / "head")
    assert isinstance(session.draft_model, DraftHead) and set(range(ZERO, 81)) <= set(
        session.draft_model.config.frequent
    )
    found = session.transcribe(manifest.parent / "0.wav", temperature=0, num_draft_tokens=4)
    assert (
        found.stats.drafted_tokens
        and found.text
        == load(tmp_path / "speech").transcribe(manifest.parent / "0.wav", temperature=0, drafter="none").text
    )
    status, err = command("speech", "manifest", "--resume", "--force")
    assert status == 0 and "resuming after step 4" in err


def test_sources_that_do_not_fit_are_refused(command: Callable[..., tuple[int, str]]) -> None:
    for arguments, expected in (
        (("text", "manifest"), "--audio-manifest: "),
        (("speech", "prompts"), "--prompts: "),
        (("speech", "manifest", "--kind", "model", "--draft-model", "speech"), "--kind: only a draft head"),
    ):
        status, err = command(*arguments)
        assert status == 2 and expected in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "line 2 is not a transcript"),
        ('{"audio": "a.wav", "segments": []}', "'language'"),
        ('{"audio": "a.wav", "language": "en", "segments": [{"start": 0, "text": "a"}]}', "'end'"),
    ],
)
def test_damaged_manifests_are_refused(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    path.write_text('{"audio": "a.wav", "language": "en", "segments": []}\n' + line)
    with pytest.raises(InputError, match=problem):
        read_manifest(path)


def test_a_manifest_may_be_utf_16_with_a_byte_order_mark(tmp_path: Path) -> None:
    line = {"audio": "a.wav", "language": "en", "segments": [{"start": 0, "end": 1, "text": "Grüße\u2028"}]}
    content = json.dumps(line, ensure_ascii=False) + "\r\n\n" + json.dumps(line) + "\n"
    found = []
    for name, encoding in (("plain", "utf-8"), ("marked", "utf-16")):
        (tmp_path / name).write_bytes(content.encode(encoding))
        found.append(read_manifest(tmp_path / name))
    assert found[0] == found[1] and len(found[0]) == 2 and found[0][0].segments[0].text == "Grüße\u2028"
    (tmp_path / "marked").write_bytes(content.encode("utf-16-le"))
    for path in (tmp_path / "marked", tmp_path / "missing"):
        with pytest.raises(InputError, match=f"^audio_manifest: {path}: (contains a NUL|not readable)"):
            read_manifest(path)


def test_unknown_language_is_refused(manifest: Path, tmp_path: Path) -> None:
    recording = Recording(read_manifest(manifest)[0].audio, "xx", [Spoken(0, 0.2, "a")])
    with pytest.raises(InputError, match="'xx' is not a language of this model"):
        write_windows(Session(MODEL, Letters()), [recording], tmp_path, seed=0)
