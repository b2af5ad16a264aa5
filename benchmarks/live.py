"""Measures the accuracy and speed of live transcription: `python -m benchmarks.live --model NAME`

    python -m benchmarks.live --model openai/whisper-base --head models/whisper-base-head \\
        --normalizer english.json --recordings RECORDING.wav...

Each recording, a 16 kHz WAV file of English speech, is replayed as live speech with a simulated clock, without waiting.
A hypothesis is decoded after each second of audio: without drafts, with drafts of at most 15 tokens, and with the
default draft length. The final texts must be equal. The first table contains these columns for each recording:

- errors: the word error rate of the final text against the transcript of the whole recording, after both have been
  normalized by openai-whisper's normalizer
- calls: the target calls of all hypotheses, divided by the number of calls without drafts
- within: the share of hypotheses with at most ceil(A / 16) + B + 1 target calls, and the largest number of calls above
  this bound. A is the number of tokens that match the last hypothesis in order, not counting text that has been cut
  since then; B is the number of other tokens. Timestamps match if they denote the same time in the recording

With `--time`, the clock advances while a hypothesis is decoded, and the next hypothesis includes all audio up to then.
The second table shows the decoding time per second of speech, and the delay from the end of a word until it appears in
the final text.

With `--loop SECONDS`, the recordings are instead repeated as one long stream, and the peak memory of this process is
printed after five minutes and at the end.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import chain, cycle, repeat
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from speculative_decoding import Session, load
from speculative_decoding.cli.common import run, say
from speculative_decoding.cli.parser import Parser, argument_type
from speculative_decoding.sampling.values import Number
from speculative_decoding.speech.api import new_scheduler
from speculative_decoding.speech.audio_file import scaled
from speculative_decoding.speech.keywords import split_options
from speculative_decoding.speech.live.stream import LiveStream
from speculative_decoding.speech.live.update import LiveUpdate
from speculative_decoding.speech.segments import FRAMES_PER_POSITION, DecodedWindow, Window

from .machine import described, environment, notes, used_by_others
from .speech_texts import RATE, read_samples
from .text_rows import NUM_DRAFT
from .texts import JFK
from .word_errors import normalizer, word_errors

EVERY = 1.0  # seconds
MODES: dict[str, dict[str, Any]] = {
    "without drafts": {"drafter": "none"},
    f"{NUM_DRAFT} tokens": {"num_draft_tokens": NUM_DRAFT},
    "default": {},
}


class Time(NamedTuple):
    """A timestamp, as a frame index in the recording."""

    frame: int


class Hypothesis(NamedTuple):
    """The output for a window. start: the window's first frame. tokens: the output, including the end token."""

    start: int
    tokens: Sequence[int | Time]

    def after(self, frame: int) -> Sequence[int | Time]:
        """Return the tokens that remain if the window is cut at a frame."""
        if frame == self.start:
            return self.tokens
        before = [i for i, token in enumerate(self.tokens) if isinstance(token, Time) and token.frame <= frame]
        return self.tokens[before[-1] :] if before else ()


class Heard(NamedTuple):
    """An update of the text.

    Args:
        update: The update.
        hypothesis: The hypothesis decoded for the update, or None.
        shown: When the update is shown, in seconds of the simulated clock.
        seconds: Wall-clock seconds from the arrival of the audio until the update.
    """

    update: LiveUpdate
    hypothesis: Hypothesis | None
    shown: float
    seconds: float


@dataclass(frozen=True)
class Replay:
    """A recording that was replayed as live speech."""

    heard: Sequence[Heard]

    @property
    def text(self) -> str:
        return "".join(each.update.final for each in self.heard)

    @property
    def calls(self) -> int:
        return sum(each.update.stats.target_calls for each in self.heard)

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.heard)

    @property
    def excesses(self) -> list[int]:
        """For each hypothesis, the target calls beyond the bound."""
        found = []
        last = Hypothesis(0, ())
        for each in self.heard:
            if (new := each.hypothesis) is not None:
                found.append(each.update.stats.target_calls - bound(last.after(new.start), new.tokens))
                last = new
        return found

    @property
    def words(self) -> Iterator[tuple[str, float]]:
        """The words of the final text, each with the time at which it was shown as final."""
        for each in self.heard:
            yield from zip(each.update.final.split(), repeat(each.shown))


def bound(last: Sequence[Hashable], new: Sequence[Hashable]) -> int:
    """Return the expected maximum number of target calls for a hypothesis, given the previous hypothesis."""
    num_agreeing = common_subsequence(last, new)
    return ceil(num_agreeing / (NUM_DRAFT + 1)) + len(new) - num_agreeing + 1


def common_subsequence(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence."""
    lengths = [0] * (len(b) + 1)
    for item in a:
        diagonal = 0
        for i, other in enumerate(b, 1):
            above = lengths[i]
            lengths[i] = diagonal + 1 if item == other else max(above, lengths[i - 1])
            diagonal = above
    return lengths[-1]


def replay(
    session: Session, samples: np.ndarray, *, every: float = EVERY, is_timed: bool = False, **options: Any
) -> Replay:
    """Replay a recording as live speech. is_timed: whether the clock advances while a hypothesis is decoded."""
    own, decoding = split_options({"language": "en", "temperature": 0, **options}, session.model.audio)
    scheduler = new_scheduler(session, own, decoding, live_slots=1)
    stream = scheduler.open_stream(every=every)
    assert not [*scheduler.start(0, stream)]
    hypotheses = listen(session, stream)
    heard: list[Heard] = []
    now, arrived = 0.0, 0
    while not heard or not heard[-1].update.is_last:
        now = max(now, min(arrived / RATE + every, len(samples) / RATE))
        end = min(round(now * RATE), len(samples))
        stream.append(scaled(samples[arrived:end]))
        arrived = end
        if arrived == len(samples):
            stream.finish()
        started = perf_counter()
        while not scheduler.is_idle:
            for update in scheduler.step():
                assert isinstance(update, LiveUpdate)
                seconds = perf_counter() - started
                decoded = hypotheses.pop() if hypotheses else None
                heard.append(Heard(update, decoded, now + seconds * is_timed, seconds))
        now += (perf_counter() - started) * is_timed
    return Replay(heard)


def listen(session: Session, stream: LiveStream) -> list[Hypothesis]:
    """Return a list to which each hypothesis of a stream will be added."""
    hypotheses: list[Hypothesis] = []
    audio, add = session.model.audio, stream.add
    assert audio is not None

    def time(token: int, window: Window) -> Time:
        return Time(window.seek + (token - audio.timestamp_begin) * FRAMES_PER_POSITION)

    def added(decoded: DecodedWindow, *rest: Any) -> LiveUpdate:
        window = stream.window
        assert window is not None
        tokens = [time(token, window) if audio.is_timestamp(token) else token for token in decoded.tokens]
        hypotheses.append(Hypothesis(window.seek, [*tokens, audio.end]))
        return add(decoded, *rest)

    stream.add = added  # type: ignore[method-assign, assignment]
    return hypotheses


@dataclass(frozen=True)
class Measured:
    """A recording with its replays by mode; `timed` are replays with an advancing clock, if requested."""

    name: str
    seconds: float
    errors: int
    words: int
    replays: dict[str, Replay]
    timed: dict[str, Replay]
    delays: dict[str, list[float]]


def measure(session: Session, path: Path, normalize: Any, *, has_times: bool) -> Measured:
    say(f"{path.stem}: transcribing")
    samples = read_samples(path)
    offline = session.transcribe(samples, language="en", seed=0)
    replays, timed, delays = {}, {}, {}
    for name, mode in MODES.items():
        say(f"{path.stem}: {name}")
        replays[name] = replay(replace(session), samples, **mode)  # without learned statistics
        if replays[name].text != replays["without drafts"].text:
            raise AssertionError(f"{path.stem}: the final text with drafts differs from the one without")
        if has_times and name != f"{NUM_DRAFT} tokens":
            timed[name] = replay(replace(session), samples, is_timed=True, **mode)
    if has_times:
        spoken = session.transcribe(samples, language="en", seed=0, word_timestamps=True).segments
        ends = [(word.word, word.end) for segment in spoken for word in segment.words or ()]
        delays = {name: word_delays([*each.words], ends) for name, each in timed.items()}
    expected = normalize(offline.text).split()
    errors = word_errors(normalize(replays["without drafts"].text).split(), expected)
    return Measured(path.stem, len(samples) / RATE, errors, len(expected), replays, timed, delays)


def word_delays(shown: Sequence[tuple[str, float]], spoken: Sequence[tuple[str, float]]) -> list[float]:
    """Return the delay from the end of each word until it was shown, for words that occur in both texts."""
    keys = [["".join(filter(str.isalnum, word)).casefold() for word, _ in words] for words in (shown, spoken)]
    blocks = SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_matching_blocks()
    return [shown[a + i][1] - spoken[b + i][1] for a, b, size in blocks for i in range(size)]


def count_rows(found: Sequence[Measured]) -> Iterator[list[str]]:
    baseline, fixed, default = MODES
    yield ["recording", "seconds", "hypotheses", "errors", "calls", "calls, default length", "within", "most beyond"]
    total = [("all", found)] if len(found) > 1 else []
    for name, some in [*((each.name, [each]) for each in found), *total]:
        calls = {mode: sum(each.replays[mode].calls for each in some) for mode in MODES}
        excesses = [*chain.from_iterable(each.replays[fixed].excesses for each in some)]
        yield [
            name,
            f"{sum(each.seconds for each in some):.1f}",
            f"{len(excesses)}",
            f"{sum(each.errors for each in some) / sum(each.words for each in some):.1%}",
            f"{calls[fixed] / calls[baseline]:.2f} ({calls[fixed]} / {calls[baseline]})",
            f"{calls[default] / calls[baseline]:.2f}",
            f"{sum(each <= 0 for each in excesses) / len(excesses):.1%}",
            f"{max(0, *excesses)}",
        ]


def time_rows(found: Sequence[Measured]) -> Iterator[list[str]]:
    yield ["recording", "drafts", "seconds per second", "delay, median", "delay, 95th percentile"]
    total = [("all", found)] if len(found) > 1 else []
    for name, some in [*((each.name, [each]) for each in found), *total]:
        for mode in found[0].timed:
            share = sum(each.timed[mode].seconds for each in some) / sum(each.seconds for each in some)
            delays = [*chain.from_iterable(each.delays[mode] for each in some)]
            late = statistics.quantiles(delays, n=20, method="inclusive")[-1]
            yield [name, mode, f"{share:.2f}", f"{statistics.median(delays):.1f} s", f"{late:.1f} s"]


def table(rows: Iterable[Sequence[str]]) -> str:
    head, *rest = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rest))


def loop(session: Session, paths: Sequence[Path], seconds: float) -> None:
    """Transcribe the recordings repeatedly, as a stream of this many seconds, and print the peak memory."""
    chunks = (
        samples[at : at + RATE] for samples in cycle(map(read_samples, paths)) for at in range(0, len(samples), RATE)
    )
    limited = (chunk for _, chunk in zip(range(ceil(seconds)), chunks, strict=False))
    next_print, words = 300.0, 0
    for update in session.transcribe_live(limited, reads_ahead=False, language="en"):
        words += len(update.final.split())
        if update.is_last or update.seconds >= next_print:
            next_print += 300.0
            print(f"{update.seconds:.0f} s: {words} words, peak memory {peak_memory() / 1e6:.1f} MB", flush=True)


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def compare(chosen: argparse.Namespace) -> int:
    where, others = environment(), used_by_others()
    normalize = None if chosen.loop else normalizer(chosen.normalizer)
    session = load(chosen.model, draft=chosen.head, dtype="float32")
    print(described(where), flush=True)
    if chosen.loop:
        loop(session, chosen.recordings, chosen.loop)
        return 0
    found = []
    for path in chosen.recordings:
        found.append(measure(session, path, normalize, has_times=chosen.time))
        print(f"\n{table(count_rows(found[-1:]))}", flush=True)
    print("", *(f"**Note: {note}.**" for note in notes(where, others, used_by_others(), 5) if chosen.time), sep="\n")
    print(table(count_rows(found)))
    if chosen.time:
        print("", table(time_rows(found)), sep="\n")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m benchmarks.live", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--model", required=True, metavar="NAME", help="a Whisper")
    add("--head", metavar="NAME", help="its draft head (default: none)")
    recordings = "16 kHz WAV files of English speech (default: data/jfk.wav)"
    add("--recordings", type=Path, nargs="+", default=[JFK], metavar="FILE", help=recordings)
    spelling = "table of spellings of openai-whisper's normalizer: its whisper/normalizers/english.json"
    add("--normalizer", type=Path, metavar="FILE", help=spelling)
    add("--time", action="store_true", help="also measure times and delays")
    seconds = argument_type(Number(0))
    add(
        "--loop", type=seconds, metavar="SECONDS", help="repeat the recordings for this long, and print the peak memory"
    )
    chosen = parser.parse_args(argv)
    return run("benchmarks.live", lambda: compare(chosen))


if __name__ == "__main__":
    sys.exit(main())
