"""`transcribe --live`: prints the text of speech while it is spoken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, fields
from itertools import takewhile
from pathlib import Path
from typing import Annotated as A
from typing import Any

from ...cli.common import interrupts, printing, say, write_stats
from ...cli.run_config import DraftFlags, ModelFlags, RunConfig
from ...cli.runner import note_exactness, run_summary
from ...decoding.results import GenerationStats
from ...errors import InputError, Message
from ...loading.pair import ModelPair
from ...sampling.values import BASIC, Flag, Number, Text
from ..audio_file import SAMPLE_RATE
from ..keywords import DECODING
from .arriving import Arriving, Chunk
from .display import JsonLines, TerminalText
from .sources import MICROPHONE, LiveSource
from .stream import OPTIONS
from .update import LiveUpdate

STOPPED = 130  # exit status after Ctrl-C, the same as for other commands
LIVE = (
    f"transcribe speech while it arrives: from {MICROPHONE} or {MICROPHONE}:DEVICE; from a file, at the speed of its "
    "sound; or from standard input (-), as PCM (signed 16-bit little-endian, 16 kHz, mono)"
)
LIVE_SPEED = "how fast the file plays, as a multiple of real time (default: 1)"


@dataclass(frozen=True)
class LiveFlags:
    """The flags of live speech."""

    live: A[str | None, Text(), LIVE, BASIC, Flag(metavar="SOURCE")] = None
    live_speed: A[float | None, Number(0.1, 1e9), LIVE_SPEED] = None

    def __post_init__(self) -> None:
        if self.live is None and self.live_speed is not None:
            raise InputError(Message("has no effect without {live}"), "live_speed", "give both, or leave it out")


def require_live_flags(given: Mapping[str, Any]) -> None:
    """Raise `InputError` for flags that have no effect on live speech."""
    records = (LiveFlags, ModelFlags, DraftFlags)
    suitable = {each.name for record in records for each in fields(record)} | DECODING.keys() - {"num_beams"}
    suitable |= {*OPTIONS, "audio_track", "baseline", "stats_json"}
    for name, value in given.items():
        if name not in suitable and value != []:  # the list of files is [] if none is named
            raise InputError(Message("has no effect with {live}"), name, "leave it out")


def transcribe_live(
    source: LiveSource,
    config: RunConfig,
    pair: ModelPair,
    options: dict[str, Any],
    *,
    shows_language: bool,
    stats_json: Path | None = None,
) -> int:
    """Print the text until the source ends or the user presses Ctrl-C, and return the exit status.

    options: The transcription options.
    """
    with config.session(pair) as session:
        note_exactness(session)
        with interrupts() as is_stopped:
            say(f"listening to {source.name}; press Ctrl-C to end")
            speech = Speech(source.chunks, is_stopped)
            arriving = Arriving(speech, can_wait=source.can_wait)
            output = LiveOutput(arriving, shows_language)
            with closing(arriving):
                output.print(session.transcribe_live(arriving, **options))
    if output.hypotheses:
        say(f"{output.summary()}\n{run_summary(output.stats, config.options, 1, 0)}")
    elif output.seconds:
        say(f"{output.seconds:.1f} s of audio, all of it below -60 dBFS, which counts as silence; check the source")
    if stats_json is not None:
        settings = {"live": source.name} | pair.folders | options | config.draft_settings()
        write_stats(stats_json, settings | output.as_dict())
    if speech.error is not None:
        raise speech.error
    return STOPPED if is_stopped() else 0


class Speech:
    """The chunks of a source, until it ends or fails or Ctrl-C is pressed. All text before that point becomes final."""

    def __init__(self, chunks: Iterable[Chunk], is_stopped: Callable[[], bool]) -> None:
        self.error: InputError | None = None
        self._chunks = chunks
        self._is_stopped = is_stopped

    def __iter__(self) -> Iterator[Chunk]:
        try:
            yield from takewhile(lambda _: not self._is_stopped(), self._chunks)
        except InputError as error:
            self.error = error


@dataclass
class LiveOutput:
    """Prints updates, and adds up their statistics."""

    arriving: Arriving
    shows_language: bool
    stats: GenerationStats = field(init=False, default_factory=GenerationStats)
    seconds: float = field(init=False, default=0.0)  # of audio
    hypotheses: int = field(init=False, default=0)
    _noted: set[str] = field(init=False, default_factory=set)

    def print(self, updates: Iterable[LiveUpdate]) -> None:
        can_rewrite = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        display = TerminalText(sys.stdout) if can_rewrite else JsonLines(sys.stdout)
        with closing(display):
            for update in updates:
                self._add(update)
                for note in self._notes(update):
                    display.close()
                    say(note)
                with printing():
                    display.show(update)

    def _notes(self, update: LiveUpdate) -> Iterator[str]:
        """Yield notes for standard error, each of them only once."""
        notes = []
        if self.shows_language and update.final:
            notes.append(f"detected language: {update.language}")
        if self.dropped_seconds:
            notes.append(
                "note: speech arrives faster than this model transcribes, so some is dropped; use a smaller one"
            )
        for note in notes:
            if note not in self._noted:
                self._noted.add(note)
                yield note

    def _add(self, update: LiveUpdate) -> None:
        self.seconds = update.seconds
        self.stats.add(update.stats)
        self.hypotheses += update.stats.target_calls > 0

    @property
    def dropped_seconds(self) -> float:
        return self.arriving.dropped_samples / SAMPLE_RATE

    @property
    def busy_seconds(self) -> float:
        return self.stats.encode_seconds + self.stats.decode_seconds

    def summary(self) -> str:
        hypotheses = "1 hypothesis" if self.hypotheses == 1 else f"{self.hypotheses} hypotheses"
        dropped = f"; {self.dropped_seconds:.1f} s of sound were dropped" if self.dropped_seconds else ""
        return (
            f"{self.seconds:.1f} s of audio; {hypotheses} took {self.busy_seconds:.1f} s "
            f"({self.busy_seconds / self.seconds:.2f} of real time){dropped}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics as values for JSON."""
        counts = {name: getattr(self, name) for name in ("hypotheses", "busy_seconds", "dropped_seconds")}
        return {"audio_seconds": self.seconds} | counts | self.stats.as_dict()
