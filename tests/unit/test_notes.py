"""Notes name the caller's line. Python shows each once for each line, and the command line each time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import Session
from speculative_decoding.cli.common import run
from speculative_decoding.rooms import has_room
from tests.support.paths import ROOT
from tests.support.speech import Letters as Spoken
from tests.support.speech import noise, speech_model
from tests.support.tiny import tiny_model
from tests.support.together import Letters

TEXT = Session(tiny_model(), Letters())
SPEECH = Session(speech_model(), Spoken())


@pytest.fixture(autouse=True)
def usual_filters() -> Iterator[None]:
    """Filter warnings as a Python process does that got no -W."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        yield


def damaged(folder: Path) -> Path:
    (folder / "a.wav").write_bytes((ROOT / "data/jfk.wav").read_bytes()[:9999])
    return folder / "a.wav"


CALLS: dict[str, Callable[[Path], Any]] = {
    "generate": lambda folder: TEXT.generate("abc", max_tokens=2, top_k=5),
    "generate several": lambda folder: TEXT.generate(["abc", "b"], max_tokens=2, top_k=5),
    "stream": lambda folder: list(TEXT.stream("abc", max_tokens=2, top_k=5)),
    "rounds": lambda folder: list(TEXT.rounds("abc", max_tokens=2, top_k=5)),
    "batch": lambda folder: list(TEXT.batch(["abc"], max_tokens=2, top_k=5)),
    "row of a batch": lambda folder: list(TEXT.batch([{"prompt": "abc", "max_tokens": 2, "top_k": 5}])),
}
if has_room("speech"):
    from speculative_decoding.speech.audio_file import AudioFile

    CALLS |= {
        "transcribe": lambda folder: SPEECH.transcribe(noise(0, 0.2), temperature=0, sample_len=2, top_k=5),
        "recording": lambda folder: [*AudioFile(damaged(folder)).blocks()],
    }


@pytest.mark.parametrize("name", CALLS)
def test_a_note_names_the_line_of_the_caller(name: str, tmp_path: Path) -> None:
    call = CALLS[name]
    with warnings.catch_warnings(record=True) as caught:
        for _ in range(2):
            call(tmp_path)
    (found,) = caught
    assert (found.filename, found.lineno) == (__file__, call.__code__.co_firstlineno)
    globals().get("__warningregistry__", {}).clear()


def test_another_line_gets_the_same_note() -> None:
    with warnings.catch_warnings(record=True) as caught:
        list(TEXT.stream("abc", max_tokens=2, top_p=0.5))
        list(TEXT.stream("abc", max_tokens=2, top_p=0.5))
    assert [str(each.message) for each in caught] == [
        "top_p: has no effect at temperature 0; leave one of them out"
    ] * 2


def test_the_command_line_shows_the_notes_of_each_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # restored afterwards

    def decode_twice() -> int:
        for _ in range(2):
            TEXT.generate("abc", max_tokens=2, top_k=5)
        return 0

    assert run("main.py", decode_twice) == 0
    assert capsys.readouterr().err.count("main.py: note: top_k: has no effect at temperature 0") == 2
    warnings.simplefilter("ignore")  # -W ignore
    assert run("main.py", decode_twice) == 0
    assert not capsys.readouterr().err
