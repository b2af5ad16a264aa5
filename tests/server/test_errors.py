"""Tests that errors about options name the fields of the server's API."""

from __future__ import annotations

from speculative_decoding import InputError
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.transcription_format import FIELD_NAMES


def test_the_server_names_its_own_fields() -> None:
    found = ServerError.of(InputError("initial_prompt is in this text", "initial_prompt"), FIELD_NAMES)
    assert found.param == "prompt" and found.message == "prompt: initial_prompt is in this text"
    assert ServerError.of(InputError("top_k is the first word")).param is None
