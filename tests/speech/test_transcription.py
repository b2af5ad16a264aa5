"""Windows, seeks, segments, words and previous text equal openai-whisper's, for scripted outputs and word times.

`tools/goldens/make_transcriptions.py` records them: an output for each attempt and a time for each word take the place
of the model.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from speculative_decoding.loading.tokenizer import Vocabulary
from speculative_decoding.models.source import AudioFrames
from speculative_decoding.models.whisper_tokens import AudioConfig
from speculative_decoding.speech.options import TranscriptionOptions
from speculative_decoding.speech.segments import DecodedWindow, Window
from speculative_decoding.speech.speech_text import SpeechText
from speculative_decoding.speech.transcription import Transcriber
from speculative_decoding.speech.word_timestamps import TimedWord, align
from tests.support.paths import GOLDENS

FILE = Path(os.environ.get("TRANSCRIPTIONS", GOLDENS / "transcriptions.json.gz"))
GOLDEN = json.loads(gzip.decompress(FILE.read_bytes()))
PIECES: list[str] = GOLDEN["pieces"]
END, START, PREVIOUS, ZERO = (GOLDEN[name] for name in ("end", "start", "previous", "zero"))


class Pieces:
    """Reads and writes the tokens of the golden file."""

    languages: Mapping[str, int] = MappingProxyType({})
    vocabulary = Vocabulary({"<|endoftext|>": END, "<|startoftranscript|>": START})

    def encode(self, text: str, language: str | None = None) -> list[int]:
        raise NotImplementedError

    def encode_output(self, text: str) -> list[int]:
        return [PIECES.index(" " + word) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(PIECES[token] for token in tokens)


TEXT = SpeechText(
    Pieces(),
    AudioConfig(
        num_mel_bins=1,
        window_frames=3000,
        start=START,
        end=END,
        translate=103,
        transcribe=104,
        previous=PREVIOUS,
        no_speech=107,
        no_timestamps=108,
        timestamp_begin=ZERO,
        is_multilingual=True,
        alignment_heads=[(0, 0)],
    ),
)


class Numbers:
    """A recording whose frames are their numbers, from 1."""

    def __init__(self, num_frames: int) -> None:
        self.num_frames = num_frames

    def window(self, start: int, count: int, length: int) -> AudioFrames:
        return AudioFrames(mx.pad(mx.arange(start + 1.0, start + count + 1)[:, None], [(0, length - count), (0, 0)]))


def replay(case: dict[str, Any]) -> dict[str, Any]:
    """Transcribe with the recorded outputs. Asserts that they are asked for as they were recorded."""
    alignments = iter(case["alignments"])

    def recorded_words(window: Window, tokens: list[int]) -> list[TimedWord]:
        if not tokens:
            return []
        recorded = next(alignments)
        assert tokens == recorded["tokens"]
        times = recorded["times"]
        values = zip(TEXT.words([*tokens, END], "en"), times, times[1:], recorded["probabilities"], strict=False)
        return [TimedWord(word, list(own), start, end, p) for (word, own), start, end, p in values]

    options = TranscriptionOptions(**case["options"])
    found = Transcriber(Numbers(case["num_frames"]), TEXT, "en", options, recorded_words)
    attempts = found.attempts()
    attempt = next(attempts)
    for number, recorded in enumerate(case["attempts"]):
        frames = np.array(attempt.window.audio.frames)[:, 0]
        assert frames.shape == (3000,)
        assert (frames[0] - 1, np.count_nonzero(frames)) == (recorded["seek"], recorded["size"])
        assert (attempt.window.seek, attempt.window.size) == (recorded["seek"], recorded["size"])
        assert [*attempt.previous] == recorded["previous"]
        assert attempt.temperature == recorded["temperature"]
        tokens = recorded["tokens"]
        text = TEXT.decode(tokens).strip()
        output = DecodedWindow(
            tokens, text, recorded["temperature"], recorded["avg_logprob"], recorded["no_speech_prob"]
        )
        try:
            attempt = attempts.send(output)
        except StopIteration:
            assert number == len(case["attempts"]) - 1
            break
    return found.result().as_dict()


def test_transcripts_equal_those_of_openai_whisper() -> None:
    cases = GOLDEN["cases"]
    for case in cases:
        assert replay(case) == case["result"]
    attempts = [attempt for case in cases for attempt in case["attempts"]]
    assert any(attempt["temperature"] > 0.5 for attempt in attempts)
    assert any(len(attempt["previous"]) == 223 for attempt in attempts)


def test_times_of_words_equal_those_of_openai_whisper() -> None:
    for case in GOLDEN["alignments"]:
        scores = np.array(case["scores"], np.float32)
        words = TEXT.words([*case["tokens"], END], "en")
        found = align(words, scores, case["first"], case["probabilities"])
        assert [[each.word, each.tokens, each.start, each.end] for each in found] == [
            each[:4] for each in case["words"]
        ]
        likely = [each[4] for each in case["words"]]
        assert [each.probability for each in found] == pytest.approx(likely, rel=1e-5)


LOOPS = {  # an output that would be decoded again and again, with openai-whisper forever
    "two timestamps": [ZERO, ZERO],
    "text between": [ZERO, 1, ZERO, ZERO],
    "text after": [ZERO, ZERO, 1, 2],
    "descending": [ZERO + 9, 1, ZERO, ZERO],
    "text first": [1, 2, ZERO, ZERO],
}


@pytest.mark.parametrize("tokens", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("without_timestamps", [True, False])
def test_no_output_can_loop(tokens: list[int], without_timestamps: bool) -> None:
    """Three windows: with timestamps, whose rules a real model cannot break so, each is decoded twice."""
    options = TranscriptionOptions(without_timestamps=without_timestamps, temperature=0.0)
    found = Transcriber(Numbers(7500), TEXT, "en", options, lambda window, tokens: [])
    attempts = found.attempts()
    seeks = [next(attempts).window.seek]
    output = DecodedWindow(tokens, TEXT.decode([each for each in tokens if each < END]), 0.0, -0.1, 0.0)
    while len(seeks) < 20:
        try:
            seeks.append(attempts.send(output).window.seek)
        except StopIteration:
            break
    assert seeks == ([0, 3000, 6000] if without_timestamps else [0, 0, 3000, 3000, 6000, 6000])
    if without_timestamps:  # nothing is written twice, and no time is before the window
        texts = [TEXT.decode([each for each in tokens if each < END])] * 3
        assert [(each.text, each.start, each.end) for each in found.segments] == [
            (text, start, end) for text, start, end in zip(texts, (0, 30, 60), (30, 60, 75), strict=True)
        ]
