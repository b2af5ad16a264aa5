"""Counts tokens per target call for transcription with draft texts, for `python -m benchmarks.texts --kinds speech`."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from speculative_decoding import Session, load
from speculative_decoding.cli.common import say
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.errors import InputError
from speculative_decoding.speech.transcription import Transcription

from .text_rows import NUM_DRAFT, Row

RATE = 16_000  # samples per second


def read_samples(path: Path) -> np.ndarray:
    """Return the samples of a 16 kHz mono WAV file. Raises `InputError`."""
    try:
        with wave.open(str(path)) as file:
            if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
                raise InputError(f"--recordings {path}: must have 16 kHz, one channel and 16 bits; convert it")
            return np.frombuffer(file.readframes(file.getnframes()), "<i2")
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(f"--recordings {path}: not a WAV file ({error}); name another file") from error


@dataclass(frozen=True)
class Recorded:
    """A recording, transcribed without drafts.

    Args:
        name: The name of its file.
        parts: The samples from the start up to each full second; the last part is the whole recording.
        baselines: The transcript of each part.
        written: Another model's transcript of the whole recording.
    """

    name: str
    parts: Sequence[np.ndarray]
    baselines: Sequence[Transcription]
    written: Transcription

    @classmethod
    def of(cls, path: Path, target: Session, transcriber: Session) -> Recorded:
        say(f"speech: {path.stem}")
        samples = read_samples(path)
        parts = [*(samples[: RATE * second] for second in range(1, ceil(len(samples) / RATE))), samples]
        baselines = [transcribe(target, part, drafter="none") for part in parts]
        return cls(path.stem, parts, baselines, transcribe(transcriber, samples, drafter="none"))

    def stats(self, session: Session, part: int = -1, **options: Any) -> GenerationStats:
        """Transcribe a part with these options. The transcript must equal the baseline's."""
        found = transcribe(session, self.parts[part], num_draft_tokens=NUM_DRAFT, **options)
        if [each.tokens for each in found.segments] != [each.tokens for each in self.baselines[part].segments]:
            raise AssertionError(f"{self.name}: a transcript differs from the baseline's")
        return found.stats

    def alone(self, session: Session, drafter: str) -> GenerationStats:
        return self.stats(session, drafter=drafter)

    def with_text(self, session: Session, drafter: str) -> GenerationStats:
        return self.stats(session, drafter=drafter, draft_text=self.written.text)

    def with_times(self, session: Session, drafter: str) -> GenerationStats:
        return self.stats(session, drafter=drafter, draft_text=json.dumps(self.written.as_dict()))

    def with_hypotheses(self, session: Session, drafter: str) -> GenerationStats:
        """After each additional second, transcribe again, drafting from the previous transcript and its timestamps."""
        total = GenerationStats()
        for part, hypothesis in enumerate(self.baselines[:-1], start=1):
            total.add(self.stats(session, part, drafter=drafter, draft_text=json.dumps(hypothesis.as_dict())))
        return total


def transcribe(session: Session, samples: np.ndarray, **options: Any) -> Transcription:
    return session.transcribe(samples, temperature=0.0, language="en", **options)


Run = Callable[[Recorded, Session, str], GenerationStats]


def speech_rows(models: Sequence[Path | None], recordings: Sequence[Path]) -> Iterator[Row]:
    """Yield rows for each recording and for all of them, without draft texts and with each type of draft text.

    Args:
        models: The Whisper to measure, another Whisper that writes the transcripts, and a draft head for the first, or
            None.
        recordings: 16 kHz WAV files of English speech.
    """
    whisper, transcriber, head = models
    assert whisper is not None and transcriber is not None
    writer = load(transcriber, dtype="float32")
    with_head = load(whisper, draft=head, dtype="float32")
    target = replace(with_head, draft_model=None)
    with_model = replace(target, draft_model=writer.model, draft_tokenizer=writer.tokenizer)
    recorded = [Recorded.of(path, target, writer) for path in recordings]

    def rows(given: str, drafts: str, run: Run, session: Session, drafter: str) -> Iterator[Row]:
        say(f"speech: {given}, {drafts}")
        total = GenerationStats()
        for each in recorded:
            found = run(each, replace(session), drafter)  # without learned statistics
            total.add(found)
            yield Row(given, drafts, each.name, [found.tokens_per_target_call])
        if len(recorded) > 1:
            yield Row(given, drafts, "all", [total.tokens_per_target_call])

    modes = {"copies": (target, "ngram"), "draft model": (with_model, "model")}
    if head is not None:
        modes |= {"head": (with_head, "model"), "head and copies": (with_head, "auto")}
    for drafts, (session, drafter) in modes.items():
        yield from rows("none", drafts, Recorded.alone, session, drafter)
    texts = {
        "another model's transcript": Recorded.with_text,
        "another model's transcript with times": Recorded.with_times,
        "the last hypothesis, after each second": Recorded.with_hypotheses,
    }
    for drafts, drafter in {"text": "text", "all": "auto" if head is not None else "ngram"}.items():
        for given, run in texts.items():
            yield from rows(given, drafts, run, with_head, drafter)
