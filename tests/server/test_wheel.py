"""Tests that the wheel contains the files of the server."""

from __future__ import annotations

import pytest

from speculative_decoding.server.app import PAGE
from tests.support.wheels import installed

pytestmark = pytest.mark.slow


def test_wheel_contains_the_page_of_the_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    names = {path.name for path in (installed(tmp_path_factory) / "speculative_decoding" / "server").iterdir()}
    assert names >= {"page_text.html", "page_speech.html", *(path.removeprefix("/") for path in PAGE)}
