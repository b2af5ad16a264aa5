"""`transcribe`: prints the segments of recordings as they are finished."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from typing import Annotated as A
from typing import Any

from ..cli.common import printing, require_one_process, say, start_alone, write_stats
from ..cli.flags import NamedFile, RunFlags, add_decoding_flags, all_but, check_files
from ..cli.parser import Parser, add_flags, flags_from
from ..cli.progress import ShowProgress, progress
from ..cli.run_config import RunConfig, run_config_from
from ..cli.runner import note_exactness
from ..cli.summary import run_summary
from ..decoding.results import GenerationStats
from ..engine import DEFAULT_SLOTS
from ..errors import InputError, Name
from ..loading.names import model_name
from ..loading.pair import ModelPair
from ..rows import in_order
from ..sampling import GenerationOptions
from ..sampling.values import Bool, Int, Text
from .audio_file import AudioBytes, AudioSource, BegunSource, open_source
from .formats import FORMATS, NO_OPTIONS, STREAMED
from .keywords import DECODING
from .live.command import LiveFlags, require_live_flags, transcribe_live
from .live.sources import open_live
from .options import TranscriptionOptions, transcription_specs
from .scheduler import TranscriptionEvent, language_code
from .subtitle_options import SUBTITLES, SubtitleOptions

FILES = (
    "transcribe these files: 16 kHz WAV, and with the package av every audio and video format; - reads standard input"
)
OUTPUT_FORMAT = (
    f"a line for each segment, subtitles ({', '.join(SUBTITLES)}), a table of times, or json with the fields of "
    "openai-whisper, as a list for several files"
)
CHUNKED = (
    "transcribe fixed windows of 30 seconds together: faster, but words at the borders are cut and no window continues "
    "the text before it"
)
PYTHON_ONLY = ("prepend_punctuations", "append_punctuations")  # options without a flag
BASIC = (
    *("audio", "output_format", "chunked", "task", "language", "word_timestamps", "initial_prompt"),
    *("live", "clip_timestamps", "model", "draft_model", "drafter", "num_draft_tokens"),
)


@dataclass(frozen=True)
class TranscribeFlags(RunFlags):
    """The flags of `transcribe`, except for transcription options and decoding options."""

    audio: A[Sequence[str], Text(), FILES] = ()
    output_format: A[str, Text(FORMATS), OUTPUT_FORMAT] = "txt"
    chunked: A[bool, Bool(), CHUNKED] = False
    slots: A[int, Int(1), "number of recordings, or of windows with --chunked, to transcribe together"] = DEFAULT_SLOTS

    def __post_init__(self) -> None:
        count = len(self.audio)
        if not count:
            raise InputError("is missing", "audio", ("name a file, or transcribe live speech with ", Name("live")))
        if count > 1 and self.output_format in SUBTITLES:
            raise InputError(
                f"{self.output_format} is for one file (got {count})", "output_format", "choose txt, tsv or json"
            )
        if count > 1 and self.chunked:
            problem = f"is for one file (got {count}), as several are transcribed together anyway"
            raise InputError(problem, "chunked", "leave it out")


def transcribe_parser(program: str) -> Parser:
    parser = Parser(
        prog=program,
        usage="%(prog)s FILE [FILE ...] --model NAME [options]\n       %(prog)s --live SOURCE --model NAME [options]",
        description="Transcribe recordings with a speech model such as Whisper.",
        basic=BASIC,
    )
    parser.add_argument("audio", nargs="*", metavar="FILE", help=FILES)
    add_flags(parser, "output", TranscribeFlags, without=("audio", "prefix"))
    add_flags(parser, "subtitles", SubtitleOptions)
    add_flags(parser, "live speech", LiveFlags)
    add_flags(parser, "transcription", TranscriptionOptions, without=PYTHON_ONLY)
    add_decoding_flags(parser, without=all_but(GenerationOptions, *DECODING))
    return parser


def main(argv: Sequence[str] | None = None, program: str = "speculative-decoding transcribe") -> int:
    return start_alone(transcribe_parser(program), argv, transcribe)


def transcribe(chosen: argparse.Namespace) -> int:
    """Transcribe the files and return the exit status: 1 if some of several files could not be transcribed."""
    require_one_process()
    given = vars(chosen)
    live = flags_from(LiveFlags, chosen)
    if live.live is not None:
        return start_live(live.live, live.live_speed, given)
    flags = flags_from(TranscribeFlags, chosen)
    files: list[NamedFile] = [((Name("audio"),), name) for name in flags.audio]
    check_files(given, files)
    subtitles = flags_from(SubtitleOptions, chosen)
    subtitles.require_effect([flags.output_format])
    options = transcription_options(given)
    if subtitles.first_given is not None:
        options["word_timestamps"] = True
    slots = flags.slots
    if not flags.chunked:
        if len(flags.audio) == 1 and "slots" in given:
            raise InputError(("has no effect without ", Name("chunked"), " or several files"), "slots", "leave it out")
        slots = min(slots, len(flags.audio))
    recordings = [open_recording(name) for name in flags.audio]
    begin_to_read(recordings)

    config, pair, language = open_models(given, options)
    output = Output(flags.audio, flags.output_format, language is None, subtitles)
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
    if flags.stats_json is not None:
        settings = {"audio": list(flags.audio), "audio_seconds": output.seconds, "seconds": seconds, "slots": slots}
        drafts = config.settings()
        settings |= pair.folders | options | {name: drafts[name] for name in ("drafter", "draft_text_sha256")}
        write_stats(flags.stats_json, settings | stats.as_dict())
    return 1 if output.has_errors else 0


def start_live(name: str, speed: float | None, given: Mapping[str, Any]) -> int:
    """Open a live source and the models, and transcribe until the source ends. speed: see `open_live`."""
    require_live_flags(given)
    check_files(given, [((Name("live"),), name)])
    options = transcription_options(given)
    source = open_live(name, speed)
    config, pair, language = open_models(given, {**options, "temperature": 0.0})
    shows_language, stats = language is None, given.get("stats_json")
    return transcribe_live(source, config, pair, options, shows_language=shows_language, stats_json=stats)


def open_models(given: Mapping[str, Any], options: dict[str, Any]) -> tuple[RunConfig, ModelPair, str | None]:
    """Open the models without weights, and describe them. Raises `InputError`.

    Returns: their configuration, the models, and the language of the speech unless it has to be detected.
    """
    decoding = argparse.Namespace(**{name: given[name] for name in given if name not in transcription_specs()})
    config = run_config_from(decoding, may_sample=options.get("temperature") != 0)
    pair = config.open()
    audio = pair.target.model.audio
    if audio is None:
        raise InputError(
            f"{model_name(pair.target.folder)} reads text and cannot transcribe",
            "model",
            ("name a speech model, such as ", Name("model"), " openai/whisper-base"),
        )
    language = language_code(audio, TranscriptionOptions(**audio.defaults | options))
    say(config.describe(drafts_text=pair.drafts_text))
    return config, pair, language


def transcription_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given transcription options, by name. Raises `InputError` for options without effect."""
    options = {name: given[name] for name in transcription_specs() if name in given}
    if options.get("language") == "none":  # detect the language, even if the model has a default
        options["language"] = None
    if "temperature" in given and "compression_ratio_threshold" in given:
        raise InputError(
            ("has no effect with ", Name("temperature"), ", which turns the fallback to higher temperatures off"),
            "compression_ratio_threshold",
            "leave one of them out",
        )
    if given.get("num_beams", 1) > 1 and given.get("temperature", 0) > 0:
        raise InputError(
            (f"{given['num_beams']} has no effect at ", Name("temperature"), f" {given['temperature']:g}"),
            "num_beams",
            "leave one out",
        )
    if "carry_initial_prompt" in given and "initial_prompt" not in given:
        raise InputError(
            ("has no effect without ", Name("initial_prompt")), "carry_initial_prompt", "give both, or leave it out"
        )
    if "chunked" in given and "clip_timestamps" in given:
        raise InputError(("cannot be combined with ", Name("chunked")), "clip_timestamps", "leave one of them out")
    return options


def open_recording(name: str) -> AudioSource:
    """Return a file, or the content of standard input or a pipe. Raises `InputError`."""
    if name != "-":
        return open_source(name)
    if sys.stdin.isatty():
        raise InputError("- reads standard input, which is a terminal", "audio", "redirect a file to it, or name one")
    return AudioBytes(sys.stdin.buffer.read(), "standard input")


def begin_to_read(recordings: list[AudioSource]) -> None:
    """Read the first block of the first readable recording before models load. Raises `InputError` if all fail."""
    for number, recording in enumerate(recordings):
        try:
            recordings[number] = BegunSource(recording)
        except InputError as found:
            error = found
        else:
            return
    raise error if len(recordings) == 1 else InputError(f"none of the files can be read ({error})", "audio")


@dataclass
class Output:
    """Prints recordings one after the other, although several are transcribed together.

    Args:
        names: The names of the files.
        format: One of `FORMATS`.
        shows_language: Whether to print the language of each recording.
        subtitles: How subtitles are divided.
    """

    names: Sequence[str]
    format: str
    shows_language: bool
    subtitles: SubtitleOptions = NO_OPTIONS
    stats: GenerationStats = field(init=False, default_factory=GenerationStats)
    durations: dict[int, float] = field(init=False, default_factory=dict)  # in seconds, by recording
    has_errors: bool = field(init=False, default=False)

    @property
    def seconds(self) -> float:
        return sum(self.durations.values())

    def print(self, events: Iterable[TranscriptionEvent]) -> None:
        with progress(prints_above=self.format in STREAMED) as show:
            ordered = in_order(self._watched(events, show), attrgetter("number"), attrgetter("is_last"))
            for index, own in groupby(ordered, key=attrgetter("number")):
                own = self._noted(own)
                if self.format == "json":
                    *_, last = own
                    content = {"error": str(last.error)} if last.result is None else last.result.as_dict()
                    write(self._separator(index, "[", ", ") + json.dumps(content) + "\n")
                else:
                    write(self._separator(index, "", "\n", f"==> {self.names[index]} <==\n"))
                    segments = chain.from_iterable(event.segments for event in own)
                    for text in STREAMED[self.format](segments, self.subtitles):
                        write(text)
        if self.format == "json" and len(self.names) > 1:
            write("]\n")

    def _separator(self, index: int, first: str, others: str, heading: str = "") -> str:
        """Return the text to print before a recording. It is empty for a single recording."""
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
    """Format a duration as minutes and seconds, such as 2:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
