"""The options of a transcription, beside those of text (tests/unit/sampling/test_options.py)."""

from __future__ import annotations

from dataclasses import fields

from speculative_decoding import GenerationOptions
from speculative_decoding.sampling.options import OTHER_NAMES
from speculative_decoding.speech.options import transcription_specs


def test_suggestions_are_options_of_text_or_of_a_transcription() -> None:
    known = {*(each.name for each in fields(GenerationOptions)), *transcription_specs(), "baseline"}
    assert {each for meant in OTHER_NAMES.values() for each in meant} <= known
