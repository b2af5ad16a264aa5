"""Notes of speech name the caller's line, as those of text do (tests/unit/test_notes.py)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speculative_decoding import Session
from speculative_decoding.speech.audio_file import open_source
from tests.support.paths import ROOT
from tests.support.speech import Letters, noise, speech_model

SESSION = Session(speech_model(), Letters())


def damaged(folder: Path) -> Path:
    (folder / "a.wav").write_bytes((ROOT / "data/jfk.wav").read_bytes()[:9999])
    return folder / "a.wav"


CALLS: dict[str, Callable[[Path], Any]] = {
    "transcribe": lambda folder: SESSION.transcribe(noise(0, 0.2), temperature=0, sample_len=2, top_k=5),
    "recording": lambda folder: [*open_source(damaged(folder)).blocks()],
}


@pytest.mark.parametrize("name", CALLS)
def test_a_note_names_the_line_of_the_caller(name: str, tmp_path: Path) -> None:
    call = CALLS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.resetwarnings()  # as in a Python process that got no -W
        for _ in range(2):
            call(tmp_path)
    (found,) = caught
    assert (found.filename, found.lineno) == (__file__, call.__code__.co_firstlineno)
    globals().get("__warningregistry__", {}).clear()
