"""`transcribe` with the real whisper-base, whose folder the environment variable WHISPER_BASE names."""

from __future__ import annotations

import json
import os
from itertools import pairwise

import pytest

from speculative_decoding.speech import command as transcribe
from tests.support.paths import ROOT

MODEL = os.environ.get("WHISPER_BASE")

pytestmark = pytest.mark.skipif(MODEL is None, reason="WHISPER_BASE does not name a folder of openai/whisper-base")

TEXT = [
    "And so my fellow Americans ask not what your country can do for you,",
    "ask what you can do for your country.",
]


def test_the_bundled_recording_is_transcribed(capsys: pytest.CaptureFixture[str]) -> None:
    """Alone, as fixed windows, and beside the same recording."""
    command = ["--model", str(MODEL), "--dtype", "float32", str(ROOT / "data/jfk.wav")]
    assert transcribe.main(command) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == TEXT
    assert "detected language: en\n" in err and "0:11 of audio" in err

    assert transcribe.main([*command, "--source-language", "en", "--chunked", "--output-format", "srt"]) == 0
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if " " in line and "-->" not in line] == TEXT and "detected" not in err

    assert transcribe.main([*command, command[-1], "--output-format", "json", "--word-timestamps"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == second and first["text"] == " " + " ".join(TEXT) and first["language"] == "en"
    words = [word for segment in first["segments"] for word in segment["words"]]
    assert [word["word"].strip() for word in words] == " ".join(TEXT).split()
    assert all(before["end"] <= after["start"] for before, after in pairwise(words))
