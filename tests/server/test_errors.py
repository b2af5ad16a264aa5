"""Errors of options name the fields of the server's API."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from speculative_decoding import GenerationOptions, InputError
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.recordings import field_name
from speculative_decoding.speech.options import TranscriptionOptions


def caught(call: Callable[[], object]) -> InputError:
    with pytest.raises(InputError) as error:
        call()
    return error.value


def test_the_server_names_its_own_fields() -> None:
    error = caught(lambda: TranscriptionOptions(hallucination_silence_threshold=1.0))
    found = ServerError.of(error, field_name)
    assert found.param == "hallucination_silence_threshold" and "without timestamp_granularities[]" in found.message
    found = ServerError.of(InputError("initial_prompt is in this text", "initial_prompt"), field_name)
    assert found.param == "prompt" and found.message == "prompt: initial_prompt is in this text"
    unknown = ServerError.of(caught(lambda: GenerationOptions().override({"temprature": 1})))
    assert (unknown.param, unknown.code) == ("temprature", "unknown_field")
    assert ServerError.of(InputError("top_k is the first word")).param is None
