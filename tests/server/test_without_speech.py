"""Tests a copy of the package without the subpackage `speech`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.subpackages import copy_without, run_in

pytestmark = pytest.mark.slow

SCRIPT = """
from speculative_decoding import GenerationOptions, InputError, Session
from tests.support.serving import serving
from tests.support.tiny import tiny_model, tiny_whisper
from tests.support.together import Letters

with serving(Session(tiny_model(), Letters(), options=GenerationOptions(drafter="none", max_tokens=2))) as server:
    answers = [server.post(f"/v1/audio/{path}") for path in ("transcriptions", "translations", "nothing")]
    assert [each.status_code for each in answers] == [404] * 3
    assert answers[0].json() == answers[1].json() == answers[2].json() and "/v1/audio" not in answers[0].text
    assert server.post(prompt="abc").status_code == 200
try:
    with serving(Session(tiny_whisper(), Letters())):
        print("served")
except AssertionError as ended:
    print(ended)
"""


def test_there_are_no_paths_for_recordings_and_a_speech_model_is_refused(tmp_path: Path) -> None:
    done = run_in(copy_without(["speech"], tmp_path / "copy"), ["-c", SCRIPT])
    assert done.returncode == 0, done.stderr
    assert "needs the folder speculative_decoding/speech" in done.stdout
