"""How does voice detection affect text amid hum, noise, tones and silence? `python -m benchmarks.voice --model NAME`

    python -m benchmarks.voice --model openai/whisper-base --recordings A.wav B.wav --normalizer english.json \\
        --faster-whisper PYTHON

For each sound, the recordings (English speech in 16 kHz WAV files) are joined, with 35 seconds of the sound between
them, 5 seconds before them and 65 seconds after them. This package transcribes the result without voice detection, with
it, and, if `--faster-whisper` is given, with the cuts of faster-whisper's `vad_filter`. The columns are:

- invented: the number of text segments that lie entirely outside the recordings, and the number of words in them
- errors: the word error rate against transcripts of the separate recordings, made without voice detection
- kept: the number of seconds and parts that were kept, and the largest distance from a boundary of a part to the
  nearest boundary found by the other detector
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from speculative_decoding import Session, load
from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.parser import Parser
from speculative_decoding.errors import InputError
from speculative_decoding.speech.audio_file import Samples
from speculative_decoding.speech.recording import open_audio
from speculative_decoding.speech.segments import Segment
from speculative_decoding.speech.transcription import Transcription
from speculative_decoding.speech.voice import SpeechTimes, VoiceOptions

from .machine import described, environment
from .speech_texts import RATE, read_samples
from .texts import JFK
from .word_errors import normalizer, word_errors

Spoken = Sequence[tuple[float, float]]  # start and end of each recording, in seconds

SOUNDS = ("silence", "hum", "noise", "tones")
BEFORE, BETWEEN, AFTER = 5, 35, 65  # seconds of sound
CUT = """
import sys, json, numpy as np
from faster_whisper.vad import get_speech_timestamps
samples = np.frombuffer(sys.stdin.buffer.read(), np.float32)
print(json.dumps([border for part in get_speech_timestamps(samples) for border in (part["start"], part["end"])]))
"""


def sound(name: str, count: int) -> Samples:
    """Return (count,) samples: silence, a 50 Hz hum with harmonics, white noise at -34 dBFS, or a changing tone."""
    time = np.arange(count) / RATE
    random = np.random.default_rng(0)
    samples = np.zeros(count)
    if name == "hum":
        for n in range(1, 9):
            samples += 0.08 / n * np.sin(2 * np.pi * 50 * n * time)
    elif name == "noise":
        samples = random.normal(scale=0.02, size=count)
    elif name == "tones":
        pitches = random.choice([262, 330, 392, 440, 523, 659], count // 8000 + 1)
        samples = 0.1 * np.sin(2 * np.pi * np.repeat(pitches, 8000)[:count] * time)
    return samples.astype(np.float32)


def among(name: str, recordings: Sequence[Samples]) -> tuple[Samples, Spoken]:
    """Return the recordings joined with a sound, and the start and end of each recording."""
    lengths = [len(each) for each in recordings]
    starts = np.cumsum([BEFORE * RATE, *(length + BETWEEN * RATE for length in lengths[:-1])])
    samples = sound(name, int(starts[-1]) + lengths[-1] + AFTER * RATE)
    for start, each in zip(starts, recordings, strict=True):
        samples[start : start + len(each)] = each
    return samples, [(start / RATE, (start + length) / RATE) for start, length in zip(starts, lengths, strict=True)]


def faster_whisper_cut(python: str, samples: Samples) -> SpeechTimes:
    done = subprocess.run([python, "-c", CUT], input=samples.tobytes(), capture_output=True)
    if done.returncode:
        raise InputError(f"--faster-whisper {python}: {done.stderr.decode().strip().splitlines()[-1]}")
    return SpeechTimes(json.loads(done.stdout), len(samples))


def distance(parts: SpeechTimes, others: SpeechTimes) -> float:
    """Return the largest distance in seconds from a boundary to the nearest boundary of the other parts, either way."""
    between = abs(np.array(parts.parts).reshape(-1, 1) - np.array(others.parts).reshape(1, -1)) / RATE
    return float(max(between.min(axis=0).max(), between.min(axis=1).max())) if between.size else float("nan")


def invented(segments: Sequence[Segment], spoken: Spoken) -> list[Segment]:
    def is_outside(segment: Segment) -> bool:
        return all(segment.end <= start or segment.start >= end for start, end in spoken)

    return [each for each in segments if each.text.strip() and is_outside(each)]


def transcribe(session: Session, samples: Samples, parts: SpeechTimes | None = None, **options: Any) -> Transcription:
    """Transcribe a recording, or only the given parts of it."""
    if parts is None:
        return session.transcribe(samples, language="en", drafter="ngram", **options)
    kept = np.concatenate([samples[start:end] for start, end in parts.parts])
    found = transcribe(session, kept)
    return replace(found, segments=[parts.restored(each) for each in found.segments])


def compare(chosen: argparse.Namespace) -> int:
    session, normalize = load(chosen.model, dtype="float32"), normalizer(chosen.normalizer)
    recordings = [(read_samples(path) / 32768).astype(np.float32) for path in chosen.recordings]
    expected = normalize(" ".join(transcribe(session, each).text for each in recordings)).split()
    print(described(environment()), "", "| sound | cut by | invented | errors | kept |", "|---" * 5 + "|", sep="\n")
    totals: dict[str, list[int]] = {}

    def row(name: str, spoken: Spoken, cut_by: str, found: Transcription, kept: str) -> None:
        errors = word_errors(normalize(found.text).split(), expected)
        totals.setdefault(cut_by, []).append(errors)
        wrong = invented(found.segments, spoken)
        words = sum(len(each.text.split()) for each in wrong)
        cells = [name, cut_by, f"{len(wrong)} ({words} words)", f"{errors / len(expected):.1%}", kept]
        print("|", " | ".join(cells), "|", flush=True)

    for name in SOUNDS:
        say(name)
        samples, spoken = among(name, recordings)
        row(name, spoken, "nothing", transcribe(session, samples), "all")
        ours = open_audio(samples, [80], voice=VoiceOptions()).speech
        assert ours is not None
        found, kept = transcribe(session, samples, vad=True), described_parts(ours)
        if chosen.faster_whisper is None:
            row(name, spoken, "--vad", found, kept)
            continue
        theirs = faster_whisper_cut(chosen.faster_whisper, samples)
        row(name, spoken, "--vad", found, f"{kept}; {distance(ours, theirs):.2f} s")
        row(name, spoken, "vad_filter", transcribe(session, samples, theirs), described_parts(theirs))
    for cut_by, errors in totals.items():
        print(f"pooled, cut by {cut_by}: {sum(errors) / len(errors) / len(expected):.2%} of {len(expected)} words")
    return 0


def described_parts(parts: SpeechTimes) -> str:
    return f"{sum(end - start for start, end in parts.parts) / RATE:.1f} s in {len(parts.parts)}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.voice", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--model", required=True, metavar="NAME", help="a Whisper")
    recordings = "16 kHz WAV files of English speech (default: data/jfk.wav)"
    add("--recordings", type=Path, nargs="+", default=[JFK], metavar="FILE", help=recordings)
    spelling = "table of spellings of openai-whisper's normalizer: its whisper/normalizers/english.json"
    add("--normalizer", type=Path, required=True, metavar="FILE", help=spelling)
    add("--faster-whisper", metavar="PYTHON", help="Python interpreter in which faster-whisper is installed")
    chosen = parser.parse_args(argv)
    return run("benchmarks.voice", lambda: compare(chosen))


if __name__ == "__main__":
    sys.exit(main())
