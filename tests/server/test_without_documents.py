"""Tests a copy of the package without the subpackage `documents`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.subpackages import copy_without, run_in

pytestmark = pytest.mark.slow

SCRIPT = """
from speculative_decoding import GenerationOptions, Session
from tests.support.serving import serving
from tests.support.tiny import tiny_model
from tests.support.together import Letters

own = {"source": "en", "target": "de"}
session = Session(tiny_model(), Letters(), options=GenerationOptions(drafter="none", max_tokens=2))
with serving(session, prefixes={("en", "de"): ""}) as server, server.client() as client:
    said = "translations require the subpackage documents, which is not installed on this server"
    refused = server.post("/translate", q="abc", **own)
    assert refused.status_code == 501 and refused.json()["error"] == said, refused.text
    refused = client.post("/translate_file", data=own, files={"file": ("a.txt", b"abc")})
    assert refused.status_code == 501 and refused.json()["error"] == said, refused.text
    assert server.post(prompt="abc").status_code == 200
    settings = client.get("/frontend/settings").json()
    assert settings["filesTranslation"] is False and settings["supportedFilesFormat"] == []
"""


def test_prompts_are_completed_and_translations_are_refused(tmp_path: Path) -> None:
    done = run_in(copy_without(["documents"], tmp_path / "copy"), ["-c", SCRIPT])
    assert done.returncode == 0, done.stderr
