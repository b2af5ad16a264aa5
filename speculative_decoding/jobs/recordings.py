"""Checks lines that name recordings, transcribes the recordings, and creates their records.

This module is imported only if a line has "audio" or the model is a speech model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..sampling import GenerationOptions
from ..sampling.options import OPTIONS_BY_OTHER_NAME, meant_options, validate
from ..sampling.values import Text
from ..speech.keywords import DECODING, split_options
from ..speech.options import transcription_specs
from ..speech.scheduler import Scheduler, Task
from ..speech.segments import Segment
from ..speech.transcription import Transcription
from .fields import JOB_OPTIONS, LINE_OPTIONS, RECORD_FIELDS, LineFields, similarity_key

FIELDS = ("audio", *transcription_specs(), *(name for name in DECODING if name in LINE_OPTIONS))
RECORDING = LineFields(
    FIELDS,
    {*RECORD_FIELDS, "language", "seconds", "segments"},
    {
        **dict.fromkeys(map(similarity_key, LINE_OPTIONS.keys() - set(FIELDS)), ()),
        **{
            similarity_key(name): tuple(meant)
            for name in OPTIONS_BY_OTHER_NAME
            if (meant := meant_options(name, FIELDS))
        },
        **{similarity_key(name): (name,) for name in (*FIELDS, *JOB_OPTIONS)},
    },
)


def check_recording(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the fields of a line with a recording. Its options are those of `transcribe`. Raises `InputError`."""
    validate("audio", Text(), given["audio"])
    fields = RECORDING.check(given)
    own = {name: value for name, value in fields.items() if name != "audio"}
    GenerationOptions().override(split_options(own)[1])
    return fields


def opener(scheduler: Scheduler, folder: Path, fields: Mapping[str, Any]) -> Callable[[], Task]:
    """Return a function that opens the recording of a line. folder: The base of relative paths."""
    found = {**fields, "audio": folder / fields["audio"]} if "audio" in fields else fields
    return partial(scheduler.open, found)


def transcript_fields(result: Transcription) -> dict[str, Any]:
    """Return the fields of a transcript's record, without the counts."""
    segments = [segment_fields(each) for each in result.segments]
    return {"text": result.text, "language": result.language, "seconds": result.seconds, "segments": segments}


def segment_fields(segment: Segment) -> dict[str, Any]:
    """Return a segment's text and times. Probabilities are omitted: their last digits depend on the other rows."""
    words = [{"word": word.word, "start": word.start, "end": word.end} for word in segment.words or ()]
    fields = {"start": segment.start, "end": segment.end, "text": segment.text}
    return fields | ({"words": words} if words else {})
