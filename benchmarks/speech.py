"""Times transcription with and without drafts, and with openai-whisper and faster-whisper, in one interleaved run.

    python -m benchmarks.speech openai/whisper-base RECORDING.wav... --draft-model models/whisper-base-head \\
        --peer openai-whisper OTHER/bin/python openai/whisper-base --peer faster-whisper OTHER/bin/python CT2_FOLDER

Recordings are 16 kHz WAV files of English speech. All programs decode greedily, without fallback, in float32, and with
the same number of threads. In each repeat, every program transcribes all recordings; each repeat starts with a
different program. The table shows medians of wall-clock times. For other programs, and when several recordings are
decoded at once, the decoder's time includes reading the recordings and computing log-mel frames.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from speculative_decoding import Session, load
from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.parser import Parser, argument_type
from speculative_decoding.decoding.results import GenerationStats
from speculative_decoding.sampling.options import option_specs

from .machine import described, environment
from .options import COUNT
from .peers import WORKER, Worker

MODES = {"baseline": {"drafter": "none"}, "head": {"drafter": "model"}, "head and copies": {"drafter": "auto"}}


class Timing(NamedTuple):
    """Seconds for all recordings together, and the statistics of decoding if this package decoded them."""

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


@dataclass(frozen=True)
class Peer:
    """Another program."""

    worker: Worker

    def transcribe(self, files: Sequence[str]) -> Timing:
        answer = self.worker.answer({"files": list(files)})
        return Timing(answer["seconds"], answer["encoder"], answer["texts"])


def measure(programs: dict[str, Any], files: Sequence[str], repeats: int, is_batch: bool) -> dict[str, list[Timing]]:
    """Return the timings of each program. is_batch: whether to transcribe all recordings together."""
    groups = [list(files)] if is_batch else [[file] for file in files]
    timings: dict[str, list[Timing]] = {name: [] for name in programs}
    names = [*programs]
    for repeat in range(-1, repeats):  # the first repeat is a warm-up
        for turn in range(len(names)):
            name = names[(turn + repeat) % len(names)]
            parts = [programs[name].transcribe(group) for group in groups]
            if repeat >= 0:
                timings[name].append(total(parts))
            say(f"{name}: {sum(part.total for part in parts):.1f} s")
    return timings


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


def rows(found: Mapping[str, list[Timing]], is_batch: bool) -> Iterator[str]:
    yield "| program | total | encoder | decoder | tokens per call | decoding against baseline | acceptance |"
    yield "|---|---|---|---|---|---|---|"
    baseline = 0.0
    for name, timings in found.items():
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


def compare(chosen: argparse.Namespace) -> int:
    session = load(chosen.model, draft=chosen.draft_model, dtype="float32", num_draft_tokens=chosen.num_draft)
    print(described(environment()))
    with ExitStack() as stack:
        peers = {}
        for name, python, model in chosen.peer:
            job = {"peer": name, "target": model, "mode": {"threads": chosen.threads}}
            peers[name] = Peer(stack.enter_context(closing(Worker([python, str(WORKER)], job))))
        for slots in chosen.slots:
            programs = {name: Ours(session, mode, slots) for name, mode in MODES.items()}
            found = measure({**programs, **peers}, chosen.recordings, chosen.repeats, slots > 1)
            print(f"\n{len(chosen.recordings)} recordings, {slots} at once, medians of {chosen.repeats} repeats\n")
            print("\n".join(rows(found, slots > 1)))
            texts = found["baseline"][0].texts
            for name, timings in found.items():
                same = sum(a.split() == b.split() for a, b in zip(timings[0].texts, texts, strict=True))
                print(f"- {name}: {same} of {len(texts)} texts equal the baseline's")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.speech", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a Whisper")
    parser.add_argument("recordings", nargs="+", help="16 kHz WAV files of English speech")
    parser.add_argument("--draft-model", required=True, metavar="NAME", help="its draft model or draft head")
    length = argument_type(option_specs()["num_draft_tokens"].type)
    parser.add_argument("--num-draft", type=length, default="auto", metavar="N", help="draft length (default: auto)")
    peers = "another program: its name, the Python in which it is installed, and its model"
    parser.add_argument("--peer", nargs=3, action="append", default=[], metavar=("NAME", "PYTHON", "MODEL"), help=peers)
    slots = "recordings at once (default: 1 8)"
    parser.add_argument("--slots", type=COUNT, nargs="+", default=[1, 8], metavar="N", help=slots)
    parser.add_argument("--repeats", type=COUNT, default=5, metavar="N", help="measured repeats (default: 5)")
    threads = "threads of other programs (default: one for each core)"
    parser.add_argument("--threads", type=COUNT, default=os.cpu_count() or 1, metavar="N", help=threads)
    chosen = parser.parse_args(argv)
    return run("benchmarks.speech", lambda: compare(chosen))


if __name__ == "__main__":
    sys.exit(main())
