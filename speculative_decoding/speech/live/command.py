"""`transcribe --live`: prints the text of speech while it is spoken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...cli.common import interrupts, printing, say, write_stats
from ...cli.run_config import RunConfig
from ...cli.runner import note_exactness
from ...cli.summary import run_summary
from ...decoding.results import GenerationStats
from ...errors import InputError
from ...loading.pair import ModelPair
from ..audio_file import SAMPLE_RATE
from .arriving import Arriving, Chunk
from .display import JsonLines, TerminalText
from .sources import LiveSource
from .update import LiveUpdate

STOPPED = 130  # exit status, as after Ctrl-C in other commands


def transcribe_live(
    source: LiveSource, config: RunConfig, pair: ModelPair, options: Mapping[str, Any], stats_json: Path | None
) -> int:
    """Print the text until the source ends, or Ctrl-C ends it, and return the exit status."""
    with config.session(pair) as session, interrupts() as is_stopped:
        note_exactness(session)
        speech = Speech(source.chunks, is_stopped)
        arriving = Arriving(speech, can_wait=source.can_wait)
        if not source.can_wait:
            say(f"listening to the {source.name}; press Ctrl-C to end")
        output = LiveOutput(arriving, shows_language="language" not in options)
        with closing(arriving), closing(session.transcribe_live(arriving, **options)) as updates:
            output.print(updates)
    output.summarize(config)
    if stats_json is not None:
        write_stats(stats_json, {"live": source.name} | output.as_dict() | pair.folders | config.settings() | options)
    if speech.error is not None:
        raise speech.error
    return STOPPED if is_stopped() else 0


class Speech:
    """The chunks of a source until it ends, fails, or is stopped. Then the text so far becomes final."""

    def __init__(self, chunks: Iterable[Chunk], is_stopped: Callable[[], bool]) -> None:
        self.error: InputError | None = None
        self._chunks = chunks
        self._is_stopped = is_stopped

    def __iter__(self) -> Iterator[Chunk]:
        try:
            for chunk in self._chunks:
                if self._is_stopped():
                    return
                yield chunk
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

    def print(self, updates: Iterable[LiveUpdate]) -> None:
        can_rewrite = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        display = TerminalText(sys.stdout) if can_rewrite else JsonLines(sys.stdout)
        with printing(), closing(display):
            for update in updates:
                self._add(update)
                self._note(update, display)
                display.show(update)

    @property
    def dropped_seconds(self) -> float:
        return self.arriving.dropped_samples / SAMPLE_RATE
