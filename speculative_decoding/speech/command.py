"""main.py --audio, or `speculative-decoding transcribe`: prints the segments of recordings as they are finished."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter

from ..cli import common
from ..cli.common import printing, say, write_stats
from ..cli.compare import note_exactness
from ..cli.flags import (
    SHARED_FLAGS,
    Files,
    Recordings,
    Views,
    require_consistent,
    transcribe_parser,
    transcription_options,
)
from ..cli.parser import flags_from, require_writable
from ..cli.progress import ShowProgress, progress
from ..cli.run_config import run_config_from
from ..cli.summary import run_summary
from ..decoding.stats import GenerationStats
from ..errors import InputError, Name
from ..loading.names import model_name
from .audio_file import AudioBytes, AudioSource, open_source
from .chunks import in_order
from .formats import STREAMED
from .options import TranscriptionOptions
from .scheduler import TranscriptionEvent, language_code


def main(argv: Sequence[str] | None = None, program: str = "speculative-decoding transcribe") -> int:
    parser = transcribe_parser(program)
    chosen = parser.parse_args(argv)
    return common.run(program, lambda: transcribe(chosen), name=parser.name_of)


def transcribe(chosen: argparse.Namespace) -> int:
    """Transcribe the files of --audio, and return the exit status: 1 if some of several could not be transcribed."""
    require_consistent(vars(chosen))
    flags = flags_from(Recordings, chosen)
    stats_json = flags_from(Views, chosen).stats_json
    require_writable("stats_json", stats_json)
    options = transcription_options(chosen)
    slots = flags_from(Files, chosen).slots
    if not flags.chunked:
        slots = min(slots, len(flags.audio))
    recordings = [open_recording(name) for name in flags.audio]
    require_a_recording(recordings)

    decoding = argparse.Namespace(**{name: value for name, value in vars(chosen).items() if name not in SHARED_FLAGS})
    config = run_config_from(decoding, may_sample=options.get("temperature") != 0)
    pair = config.open()
    audio = pair.target.model.audio
    if audio is None:
        raise InputError(
            f"{model_name(pair.target.folder)} reads text and cannot transcribe",
            "audio",
            ("name a speech model, such as ", Name("model"), " openai/whisper-base"),
        )
    language = language_code(audio, TranscriptionOptions(**audio.defaults | options))
    say(config.describe())
    output = Output(flags.audio, flags.output_format, shows_language=language is None)
    with config.session(pair) as session:
        note_exactness(session, slots)
        start = time.monotonic()
        if flags.chunked:
            events = session.transcribe_chunks(recordings[0], slots=slots, **options)
        else:
            events = session.transcribe_batch(recordings, slots=slots, **options)
        output.print(events)
        seconds = time.monotonic() - start
    stats = output.stats
    say(f"{duration(output.seconds)} of audio in {seconds:.1f} s ({output.seconds / seconds:.1f} times real time)")
    say(run_summary(stats, config.options, len(flags.audio), 0))
    if stats_json is not None:
        settings = {"audio": list(flags.audio), "audio_seconds": output.seconds, "seconds": seconds, "slots": slots}
        write_stats(
            stats_json, pair.folders | settings | options | {"drafter": config.options.drafter} | stats.as_dict()
        )
    return 1 if output.has_errors else 0


def open_recording(name: str) -> AudioSource:
    """Return a file, or the content of standard input or a pipe. Raises `InputError`."""
    if name != "-":
        return open_source(name)
    if sys.stdin.isatty():
        raise InputError("- reads standard input, which is a terminal", "audio", "redirect a file to it, or name one")
    return AudioBytes(sys.stdin.buffer.read(), "standard input")


def require_a_recording(recordings: Sequence[AudioSource]) -> None:
    """Read the start of the files before models load. Raises `InputError` if none of them is a recording."""
    for recording in recordings:
        try:
            if next(recording.blocks(), None) is not None:
                return
            error = InputError(f"{recording.name}: contains no sound; name another file")
        except InputError as found:
            error = found
    raise error if len(recordings) == 1 else InputError(f"none of the files can be read ({error})", "audio")


@dataclass
class Output:
    """Prints recordings one after the other, although several are transcribed together.

    Args:
        names: Of the files.
        format: One of `FORMATS`.
        shows_language: Whether to print the language of each recording.
    """

    names: Sequence[str]
    format: str
    shows_language: bool
    stats: GenerationStats = field(init=False, default_factory=GenerationStats)
    durations: dict[int, float] = field(init=False, default_factory=dict)  # of the recordings so far, in seconds
    has_errors: bool = field(init=False, default=False)

    @property
    def seconds(self) -> float:
        return sum(self.durations.values())

    def print(self, events: Iterable[TranscriptionEvent]) -> None:
        with progress(prints_above=self.format in STREAMED) as show:
            for index, own in groupby(in_order(self._watched(events, show)), key=attrgetter("number")):
                own = self._noted(own)
                if self.format == "json":
                    *_, last = own
                    content = {"error": str(last.error)} if last.result is None else last.result.as_dict()
                    write(self._separator(index, "[", ", ") + json.dumps(content) + "\n")
                else:
                    write(self._separator(index, "", "\n", f"==> {self.names[index]} <==\n"))
                    segments = chain.from_iterable(event.segments for event in own)
                    for text in STREAMED[self.format](segments):
                        write(text)
        if self.format == "json" and len(self.names) > 1:
            write("]\n")

    def _separator(self, index: int, first: str, others: str, heading: str = "") -> str:
        """Return what precedes a recording, if there are several."""
        return "" if len(self.names) == 1 else (others if index else first) + heading

    def _watched(self, events: Iterable[TranscriptionEvent], show: ShowProgress) -> Iterator[TranscriptionEvent]:
        """Show the progress of all recordings."""
        positions: dict[int, float] = {}
        for event in events:
            positions[event.number], self.durations[event.number] = event.position, event.seconds
            done = sum(positions.values())
            total = self.seconds if len(positions) == len(self.names) else None
            show(done, total, f"{duration(done)} of {duration(self.seconds)}")
            yield event

    def _noted(self, events: Iterable[TranscriptionEvent]) -> Iterator[TranscriptionEvent]:
        """Print the language and the error of a recording to standard error, and add up its statistics."""
        language = None
        for event in events:
            name = f"{self.names[event.number]}: " if len(self.names) > 1 else ""
            if self.shows_language and language is None and event.language is not None:
                say(f"{name}detected language: {event.language}")
            language = event.language
            if event.error is not None:
                if len(self.names) == 1:
                    raise event.error if isinstance(event.error, InputError) else InputError(str(event.error))
                say(f"error: {event.error}")
                self.has_errors = True
            if event.result is not None:
                self.stats.add(event.result.stats)
            yield event


def write(text: str) -> None:
    with printing():
        print(text, end="", flush=True)


def duration(seconds: float) -> str:
    """Return minutes and seconds, such as 2:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
