"""Transcribed recordings, for training the draft of a speech model.

The transcripts serve as outputs, so the target need not decode any. A transcript may come from this package, or be a
text that was read aloud. In both cases, the labels are the target's distributions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..checkpoints.text import decode_text
from ..errors import InputError
from ..models.speech_languages import code_of_language


class Spoken(NamedTuple):
    """A segment of a transcript. start, end: in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Recording:
    """A recording with the segments of its transcript, in order."""

    audio: Path
    language: str
    segments: Sequence[Spoken]


def read_manifest(path: Path) -> list[Recording]:
    """Read transcribed recordings, one JSON object per line. Raises `InputError` naming the line."""
    recordings = []
    try:
        text = decode_text(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: not readable ({error.strerror})", "audio_manifest", "name another file") from error
    except InputError as error:
        raise InputError(f"{path}: {error.problem}", "audio_manifest", error.way_out) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            spoken = [Spoken(float(each["start"]), float(each["end"]), str(each["text"])) for each in entry["segments"]]
            recordings.append(Recording(path.parent / entry["audio"], code_of_language(str(entry["language"])), spoken))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path}: line {number} is not a transcript ({error!r})",
                "audio_manifest",
                'write {"audio": FILE, "language": CODE, "segments": [{"start": SECONDS, "end": SECONDS, "text": '
                "TEXT}, ...]}",
            ) from error
    return recordings


Prompt = str | Recording  # an item on which a draft is trained or measured
