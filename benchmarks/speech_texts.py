"""Tokens per target call of transcription with given texts. `python -m benchmarks.texts --kinds speech` prints them."""

from __future__ import annotations

import json
import wave
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from speculative_decoding import Session, load
from speculative_decoding.cli.common import say
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.errors import InputError

from .text_rows import NUM_DRAFT, Row

RATE = 16_000  # samples per second


def read_samples(path: Path) -> np.ndarray:
    """Return the samples of a 16 kHz WAV file with one channel. Raises `InputError`."""
    try:
        with wave.open(str(path)) as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
                raise InputError(f"--recordings {path}: must have 16 kHz, one channel and 16 bits; convert it")
            return np.frombuffer(file.readframes(file.getnframes()), "<i2")
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(f"--recordings {path}: not a WAV file ({error}); name another file") from error


class Transcriber:
    """Transcribes with and without drafts. Every transcript must equal the baseline's.

    Args:
        target: A Whisper, and a draft head or none.
        samples: The recording.
    """

    def __init__(self, target: Session, samples: np.ndarray) -> None:
        self.target = target
        self.samples = samples
        self.parts = [samples[: RATE * second] for second in range(1, ceil(len(samples) / RATE))] + [samples]
        self.baselines = [transcribe(target, part, drafter="none") for part in self.parts]

    def stats(self, part: int = -1, **options: Any) -> GenerationStats:
        """Return the statistics of the recording up to a second, decoded with these options."""
        found = transcribe(self.target, self.parts[part], num_draft_tokens=NUM_DRAFT, **options)
        if [each.tokens for each in found.segments] != [each.tokens for each in self.baselines[part].segments]:
            raise AssertionError("a transcript differs from the baseline's")
        return found.stats

    def hypotheses(self, drafter: str) -> GenerationStats:
        """Decode again after each further second, with the text so far as the draft."""
        total = GenerationStats()
        for part in range(1, len(self.parts)):
            total.add(self.stats(part, drafter=drafter, draft_text=self.baselines[part - 1].text))
        return total


def transcribe(session: Session, samples: np.ndarray, **options: Any) -> Any:
    return session.transcribe(samples, temperature=0.0, language="en", **options)


def speech_rows(models: Sequence[Path | None], recordings: Sequence[Path]) -> Iterator[Row]:
    """Yield rows for each recording: without a text, with another model's transcript, with the last hypothesis.

    Args:
        models: A Whisper, another one that writes the transcripts, and a draft head of the first one or None.
        recordings: 16 kHz WAV files of English speech.
    """
    samples = {path.stem: read_samples(path) for path in recordings}
    whisper, transcriber, head = models
    assert whisper is not None and transcriber is not None
    target = load(whisper, draft=head, dtype="float32")
    writer = load(transcriber, dtype="float32")
    all_drafters = "auto" if head else "ngram"
    for name, recording in samples.items():
        say(f"speech: {name}")
        bench = Transcriber(target, recording)
        written = transcribe(writer, recording, drafter="none")
        modes = {"copies": "ngram"} | ({"head": "model", "head and copies": "auto"} if head else {})
        for drafts, drafter in modes.items():
            yield Row("none", drafts, name, [bench.stats(drafter=drafter).tokens_per_target_call])
        texts = {
            "another model's transcript": written.text,
            "another model's transcript with times": json.dumps(written.as_dict()),
        }
        for drafts, drafter in {"text": "text", "all": all_drafters}.items():
            for given, text in texts.items():
                stats = bench.stats(drafter=drafter, draft_text=text)
                yield Row(given, drafts, name, [stats.tokens_per_target_call])
            stats = bench.hypotheses(drafter)
            yield Row("the last hypothesis, after each second", drafts, name, [stats.tokens_per_target_call])
