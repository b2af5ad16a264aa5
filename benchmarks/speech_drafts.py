"""Counts tokens per target call of speech with transcripts of another recogniser, and with that model as the draft.

    python -m benchmarks.speech_drafts openai/whisper-base data/jfk.wav RECORDING... \\
        --draft-model openai/whisper-tiny.en --head models/whisper-base-head

Everything is greedy, with drafts of at most `--num-draft` tokens. Every transcript must equal the baseline's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from speculative_decoding import Session, load
from speculative_decoding.cli.common import run
from speculative_decoding.cli.parser import Parser
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.speech.audio_file import SAMPLE_RATE, open_source
from speculative_decoding.speech.formats import srt
from speculative_decoding.speech.transcription import Transcription

from .options import COUNT

Samples = Any


class Row(NamedTuple):
    """The tokens per target call of each recording, and of all together."""

    name: str
    each: Sequence[float]
    together: float


def transcribe(session: Session, audio: Samples, **options: Any) -> Transcription:
    return session.transcribe(audio, language="en", temperature=0.0, **options)


def samples_of(path: str) -> Samples:
    return np.concatenate([*open_source(path).blocks()])


def subtitles(found: Transcription) -> str:
    return "".join(srt(found.segments))


def row(
    name: str,
    session: Session,
    recordings: Sequence[Samples],
    baselines: Sequence[Transcription],
    options_of: Callable[[int], Mapping[str, Any]],
) -> Row:
    """Raises `AssertionError` if a transcript differs from the baseline's."""
    stats = GenerationStats()
    each = []
    for number, (audio, expected) in enumerate(zip(recordings, baselines, strict=True)):
        found = transcribe(session, audio, **options_of(number))
        assert [one.tokens for one in found.segments] == [one.tokens for one in expected.segments], (name, number)
        each.append(found.stats.tokens_per_target_call)
        stats.add(found.stats)
    return Row(name, each, stats.tokens_per_target_call)


def revised(session: Session, audio: Samples, count: int) -> float:
    """Decode a recording again after each further second, with the last hypothesis as the draft text."""
    stats = GenerationStats()
    text: str | tuple[str, ...] = ()
    for end in range(SAMPLE_RATE, len(audio) + 1, SAMPLE_RATE):
        expected = transcribe(session, audio[:end], drafter="none")
        found = transcribe(session, audio[:end], drafter="text", draft_text=text, num_draft_tokens=count)
        assert [one.tokens for one in found.segments] == [one.tokens for one in expected.segments], end
        text = subtitles(found)
        stats.add(found.stats)
    return stats.tokens_per_target_call


def rows(chosen: argparse.Namespace) -> Iterator[Row]:
    recordings = [samples_of(path) for path in chosen.recordings]
    count = {"num_draft_tokens": chosen.num_draft}
    draft = load(chosen.draft_model, dtype="float32")
    given = [transcribe(draft, audio, drafter="none") for audio in recordings]
    del draft
    texts, times = [each.text for each in given], [subtitles(each) for each in given]
    target = load(chosen.model, dtype="float32")
    baselines = [transcribe(target, audio, drafter="none") for audio in recordings]
    for name, drafts in (("text without times", texts), ("text with times", times)):
        session = load(chosen.model, dtype="float32")
        options = [{"draft_text": text, "drafter": "text"} | count for text in drafts]
        yield row(name, session, recordings, baselines, options.__getitem__)
    session = load(chosen.model, draft=chosen.draft_model, dtype="float32")
    yield row("draft model", session, recordings, baselines, lambda i: {"drafter": "model"} | count)
    if chosen.head is not None:
        session = load(chosen.model, draft=chosen.head, dtype="float32")
        yield row("head", session, recordings, baselines, lambda i: {"drafter": "model"} | count)
        session = load(chosen.model, draft=chosen.head, dtype="float32")
        yield row(
            "text with times and head", session, recordings, baselines, lambda i: {"draft_text": times[i]} | count
        )
    again = [revised(target, audio, chosen.num_draft) for audio in recordings]
    yield Row("last hypothesis, each further second", again, float("nan"))


def measure(chosen: argparse.Namespace) -> int:
    print(f"| tokens per target call | together | {' | '.join(chosen.recordings)} |")
    print("|---" * (2 + len(chosen.recordings)) + "|")
    for name, each, together in rows(chosen):
        print(f"| {name} | {together:.2f} | {' | '.join(f'{value:.2f}' for value in each)} |", flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.speech_drafts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a Whisper")
    parser.add_argument("recordings", nargs="+", help="recordings of English speech")
    parser.add_argument("--draft-model", required=True, metavar="NAME", help="a Whisper of another vocabulary")
    parser.add_argument("--head", metavar="NAME", help="a draft head of the model")
    parser.add_argument("--num-draft", type=COUNT, default=15, metavar="N", help="draft tokens (default: 15)")
    chosen = parser.parse_args(argv)
    return run("benchmarks.speech_drafts", lambda: measure(chosen))


if __name__ == "__main__":
    sys.exit(main())
