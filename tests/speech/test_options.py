"""The options of a transcription, beside those of text (tests/unit/sampling/test_options.py)."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

from speculative_decoding import GenerationOptions
from speculative_decoding.sampling.options import OPTIONS_BY_OTHER_NAME
from speculative_decoding.speech.keywords import DECODING, TranscriptionKeywords
from speculative_decoding.speech.options import transcription_specs


def test_suggestions_are_options_of_text_or_of_a_transcription() -> None:
    known = {*(each.name for each in fields(GenerationOptions)), *transcription_specs(), "baseline"}
    assert {each for meant in OPTIONS_BY_OTHER_NAME.values() for each in meant} <= known


def test_type_checkers_know_every_option_with_its_type() -> None:
    types = {name: spec.annotation for name, spec in {**transcription_specs(), **DECODING}.items()}
    assert get_type_hints(TranscriptionKeywords) == types
