"""Times transcription with and without drafts, and by openai-whisper and faster-whisper, in one interleaved run.

    python -m benchmarks.speech openai/whisper-base RECORDING.wav... --draft-model models/whisper-base-head \\
        --peer openai-whisper OTHER/bin/python openai/whisper-base --peer faster-whisper OTHER/bin/python CT2_FOLDER

Recordings are English speech in 16 kHz WAV files. Everything is greedy, without fallback, in float32, and with the same
number of threads. Each program transcribes all recordings in each repeat; the next repeat starts with the next one. The
table has the medians. Encoder and decoder are wall-clock times. For other programs, and for several recordings at once,
the decoder's time includes reading and log-mel frames.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from speculative_decoding import Session, load
from speculative_decoding.decoding.results import GenerationStats

from .machine import environment

WORKER = Path(__file__).with_name("speech_worker.py")
MODES = {"baseline": {"drafter": "none"}, "head": {"drafter": "model"}, "head and copies": {"drafter": "auto"}}


class Timing(NamedTuple):
    """Seconds of all recordings together, and the statistics of our own decoding."""

    total: float
    encoder: float
    texts: list[str]
    stats: GenerationStats | None = None


@dataclass(frozen=True)
class Ours:
    session: Session
    options: dict[str, Any]
    slots: int

    def transcribe(self, files: Sequence[str]) -> Timing:
        stats = GenerationStats()
        texts = [""] * len(files)
        started = perf_counter()
        options: Any = {"temperature": 0.0, "language": "en", **self.options}
        for event in self.session.transcribe_batch(files, slots=self.slots, **options):
            if event.result is not None:
                stats.add(event.result.stats)
                texts[event.number] = event.result.text
        return Timing(perf_counter() - started, stats.encode_seconds, texts, stats)


class Peer:
    """The process of another program."""

    def __init__(self, name: str, python: str, model: str, threads: int) -> None:
        command = [python, str(WORKER)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._send({"peer": name, "model": model, "threads": threads})

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)

    def transcribe(self, files: Sequence[str]) -> Timing:
        assert self._process.stdout is not None
        self._send({"files": list(files)})
        answer = json.loads(self._process.stdout.readline())
        return Timing(answer["seconds"], answer["encoder"], answer["texts"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(
    programs: dict[str, Any], files: Sequence[str], repeats: int, is_batch: bool
) -> Iterator[tuple[str, list[Timing]]]:
    """Yield the timings of each program. is_batch: all recordings together instead of one after the other."""
    groups = [list(files)] if is_batch else [[file] for file in files]
    timings: dict[str, list[Timing]] = {name: [] for name in programs}
    names = [*programs]
    for repeat in range(-1, repeats):  # the first is a warm-up
        for turn in range(len(names)):
            name = names[(turn + repeat) % len(names)]
            parts = [programs[name].transcribe(group) for group in groups]
            if repeat >= 0:
                timings[name].append(total(parts))
            print(f"{name}: {sum(part.total for part in parts):.1f} s", file=sys.stderr)
    yield from timings.items()


def total(parts: Sequence[Timing]) -> Timing:
    stats = GenerationStats()
    for part in parts:
        if part.stats is not None:
            stats.add(part.stats)
    texts = [text for part in parts for text in part.texts]
    encoder = sum(part.encoder for part in parts)
    return Timing(sum(part.total for part in parts), encoder, texts, stats if stats.target_calls else None)


def decoder_seconds(timing: Timing, is_batch: bool) -> float:
    if timing.stats is None or is_batch:  # recordings that are decoded together share their rounds
        return timing.total - timing.encoder
    return timing.stats.decode_seconds


def rows(found: Iterator[tuple[str, list[Timing]]], is_batch: bool) -> Iterator[str]:
    yield "| program | total | encoder | decoder | tokens per call | decoding against baseline | acceptance |"
    yield "|---|---|---|---|---|---|---|"
    baseline = 0.0
    for name, timings in found:
        seconds = median(each.total for each in timings)
        encoder = median(each.encoder for each in timings)
        decoder = median(decoder_seconds(each, is_batch) for each in timings)
        stats = timings[0].stats
        if stats is None:
            yield f"| {name} | {seconds:.1f} s | {encoder:.1f} s | {decoder:.1f} s | | | |"
            continue
        baseline = baseline or decoder
        rates = " ".join(f"{rate:.2f}" for rate in stats.acceptance_by_position)
        yield (
            f"| {name} | {seconds:.1f} s | {encoder:.1f} s | {decoder:.1f} s | {stats.tokens_per_target_call:.2f} | "
            f"{baseline / decoder:.2f} | {rates} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a Whisper")
    parser.add_argument("recordings", nargs="+", help="16 kHz WAV files of English speech")
    parser.add_argument("--draft-model", required=True)
    parser.add_argument("--num-draft", default="auto", help="draft length, or auto")
    parser.add_argument("--peer", nargs=3, action="append", default=[], metavar=("NAME", "PYTHON", "MODEL"))
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8], help="recordings at once")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of other programs")
    chosen = parser.parse_args()
    length: Any = "auto" if chosen.num_draft == "auto" else int(chosen.num_draft)
    session = load(chosen.model, draft=chosen.draft_model, dtype="float32", num_draft_tokens=length)
    print(json.dumps(environment()))
    with ExitStack() as stack:
        peers = {}
        for name, python, model in chosen.peer:
            peers[name] = Peer(name, python, model, chosen.threads)
            stack.callback(peers[name].close)
        for slots in chosen.slots:
            programs = {name: Ours(session, mode, slots) for name, mode in MODES.items()}
            found = dict(measure({**programs, **peers}, chosen.recordings, chosen.repeats, slots > 1))
            print(f"\n{len(chosen.recordings)} recordings, {slots} at once, medians of {chosen.repeats} repeats\n")
            print("\n".join(rows(iter(found.items()), slots > 1)))
            texts = found["baseline"][0].texts
            for name, timings in found.items():
                same = sum(a.split() == b.split() for a, b in zip(timings[0].texts, texts, strict=True))
                print(f"- {name}: {same} of {len(texts)} texts equal the baseline's")


if __name__ == "__main__":
    main()
