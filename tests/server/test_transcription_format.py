"""Tests requests for transcriptions: each field is accepted, or refused with an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from speculative_decoding import GenerationOptions
from speculative_decoding.server.errors import ServerError
from speculative_decoding.server.limits import Limits
from speculative_decoding.server.model_names import WHISPER, ModelNames
from speculative_decoding.server.multipart import Part
from speculative_decoding.server.transcription_format import (
    FIELDS,
    FORMATS,
    ClientRecording,
    TranscriptionRequest,
    delta_event,
    parse_transcription_request,
)
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.scheduler import TranscriptionEvent
from tests.support.speech import speech_model

AUDIO = speech_model().audio
assert AUDIO is not None
NAMES = ModelNames("tiny-whisper", [WHISPER])
FILE = Part("file", True, b"RIFF")


def parse(*parts: Part, path: str = "transcribe", drafter: str = "ngram", **fields: Any) -> TranscriptionRequest:
    given = [Part(name, False, str(value).encode()) for name, value in fields.items()]
    defaults = GenerationOptions(temperature=1, num_draft_tokens=3, drafter=drafter)
    assert AUDIO is not None
    found = parse_transcription_request([*(parts or [FILE]), *given], path, NAMES, AUDIO, defaults)
    ClientRecording(None, found.options, found.decoding).check(Limits(max_prompt_tokens=50))  # type: ignore[arg-type]
    return found


REFUSED: list[tuple[dict[str, Any], str, str | None, str]] = [
    ({"model": "gpt-4o-transcribe"}, "model", "model_not_found", "does not exist"),
    ({"response_format": "diarized_json"}, "response_format", "invalid_value", "one of json, verbose_json, text, srt"),
    ({"stream": "yes"}, "stream", "invalid_value", "true or false"),
    ({"stream": "true", "response_format": "srt"}, "stream", None, "use json"),
    ({"rounds": "true"}, "rounds", None, "no effect without stream"),
    ({"timestamp_granularities[]": "word"}, "timestamp_granularities", None, "use verbose_json"),
    ({"timestamp_granularities[]": "line"}, "timestamp_granularities", "invalid_value", ": must be one of"),
    ({"include[]": "logprobs"}, "include", "unsupported_value", "log-probabilities"),
    ({"task": "translate"}, "task", "unsupported_value", "to /v1/audio/translations"),
    ({"temperature": "hot"}, "temperature", "invalid_value", "must be"),
    ({"language": "xx"}, "language", "invalid_value", "unknown; choose one of the 2 languages"),
    ({"sample_len": "0"}, "sample_len", "invalid_value", "must be"),
    ({"num_beams": "2"}, "num_beams", "unsupported_value", "is set when the server starts"),
    ({"stop": "a"}, "stop", "unsupported_value", "is not a field of this API"),
    ({"max_tokens": "5"}, "max_tokens", "unsupported_value", "use sample_len"),
    ({"max_new_tokens": "5"}, "max_new_tokens", "unknown_field", "did you mean sample_len?"),
    (
        {"hallucination_silence_threshold": "1"},
        "hallucination_silence_threshold",
        "invalid_value",
        "without timestamp_granularities[]",
    ),
    ({"prompt": "x" * 4000}, "prompt", None, "4000 characters"),
    ({"draft_text": "a", "num_draft_tokens": "0"}, "draft_text", "invalid_value", "with num_draft_tokens 0"),
    ({"draft_text": "a", "drafter": "none"}, "draft_text", "invalid_value", "has no effect with drafter none"),
    ({"langage": "en"}, "langage", "unknown_field", "langage: unknown field; did you mean language?"),
    ({"colour": ""}, "colour", "unknown_field", "unknown field"),
]


@pytest.mark.parametrize(("fields", "param", "code", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_fields_are_named(fields: Mapping[str, Any], param: str, code: str | None, words: str) -> None:
    with pytest.raises(ServerError) as error:
        parse(**fields)
    found = error.value
    status = 404 if param == "model" else 400
    assert (found.status, found.param, found.code) == (status, param, code) and words in found.message


def test_a_recording_is_required() -> None:
    with pytest.raises(ServerError, match="^file: is missing; send a recording$"):
        parse(Part("model", False, b""))


def test_empty_fields_count_as_missing() -> None:
    """Browsers send empty fields for inputs that the user left blank."""
    empty = [Part(name, False, b"") for name in [*FIELDS, "include[]"] if name != "file"]
    assert parse(FILE, *empty) == parse()


def test_fields_set_the_options_of_transcribe() -> None:
    found = parse(
        prompt="ab",
        language="German",
        temperature="0.5",
        seed="7",
        sample_len="9",
        draft_text="und so",
        logprob_threshold="none",
        response_format="verbose_json",
        model=WHISPER,
        **{"timestamp_granularities[]": "word"},
    )
    own = found.options
    assert (own.initial_prompt, own.language, own.temperatures) == ("ab", "German", [0.5])
    assert (own.sample_len, own.logprob_threshold, own.word_timestamps, own.task) == (9, None, True, "transcribe")
    assert (found.decoding.seed, found.granularities, found.content) == (7, ("word",), b"RIFF")
    assert found.decoding.draft_text == ("und so",)
    assert parse().granularities == ("segment",) and parse(path="translate").options.task == "translate"
    assert parse().response_format == "json" == FORMATS[0]


def test_fields_that_are_lists_may_be_repeated() -> None:
    texts = [Part(name, False, text.encode()) for name, text in (("draft_text", "ab"), ("draft_text[]", "c\n"))]
    assert parse(FILE, *texts).decoding.draft_text == ("ab", "c\n")
    both = [Part("timestamp_granularities[]", False, name) for name in (b"word", b"segment")]
    assert parse(FILE, *both, response_format="verbose_json").granularities == ("word", "segment")


def test_progress_without_segments_is_no_event() -> None:
    item = ClientRecording(None, TranscriptionOptions(), GenerationOptions())  # type: ignore[arg-type]
    assert delta_event(item, TranscriptionEvent(0, [], 1.0, 2.0, "en")) is None


def test_temperature_0_lets_the_temperature_rise() -> None:
    assert parse(temperature="0") == parse() and len(parse().options.temperatures) > 1
