"""Subtitles and text, compared with openai-whisper's writers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from speculative_decoding.speech.formats import STREAMED, srt, text, timestamp, vtt
from speculative_decoding.speech.segments import Segment, Word
from tests.support.paths import ROOT

CASES = json.loads((ROOT / "tests/parity/goldens/transcript_formats.json").read_text())


def segment(fields: dict[str, Any]) -> Segment:
    words = None if "words" not in fields else [Word(**word) for word in fields["words"]]
    unused = {"id": 0, "seek": 0, "tokens": [], "temperature": 0.0, "avg_logprob": 0.0}
    return Segment(**unused, compression_ratio=1.0, no_speech_prob=0.0, **(fields | {"words": words}))


@pytest.mark.parametrize("case", CASES)
def test_formats_equal_those_of_openai_whisper(case: dict[str, Any]) -> None:
    segments = [segment(fields) for fields in case["segments"]]
    for write, name in ((text, "txt"), (srt, "srt"), (vtt, "vtt")):
        assert "".join(write(segments)) == case[name]


@pytest.mark.parametrize("name", STREAMED)
def test_each_segment_is_written_before_the_next_one_is_read(name: str) -> None:
    read = []

    def segments() -> Any:
        for number in range(3):
            read.append(number)
            yield segment({"start": number, "end": number + 1, "text": f" {number}"})

    for piece in STREAMED[name](segments()):
        assert not read or str(read[-1]) in piece


def test_timestamps_round_to_milliseconds() -> None:
    assert [timestamp(each) for each in (0, 59.9996, 3599.9994, 360000)] == [
        "00:00:00.000",
        "00:01:00.000",
        "00:59:59.999",
        "100:00:00.000",
    ]
