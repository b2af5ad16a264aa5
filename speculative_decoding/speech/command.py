"""`transcribe`: prints the segments of recordings as soon as they are finished, or writes transcripts to a folder."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated as A
from typing import Any

from ..cli.common import require_one_process, say, start_alone, write_stats
from ..cli.flags import RunFlags, add_decoding_flags, all_but, check_files
from ..cli.parser import File, Parser, add_flags, flags_from
from ..cli.run_config import RunConfig, run_config_from
from ..cli.runner import note_exactness, run_summary
from ..engine import DEFAULT_SLOTS
from ..errors import InputError, Message, one_line
from ..loading.names import model_name
from ..loading.pair import ModelPair, fingerprint
from ..runs.places import NamedFile
from ..sampling import GenerationOptions
from ..sampling.options import DEFAULT_RULE, option_specs
from ..sampling.values import Bool, Flag, Int, ListOf, Text, Value
from .audio_file import AudioFile, AudioSource, BegunSource, open_source
from .formats import FORMATS, SUBTITLES, SubtitleOptions
from .keywords import DECODING
from .live.command import LiveFlags, require_live_flags, transcribe_live
from .live.sources import open_live
from .media_files import recordings_in, without_repeats
from .options import TranscriptionOptions, transcription_specs
from .output import Output, Report, duration, pass_on
from .output_folder import OutputFolder
from .scheduler import TranscriptionEvent, language_code
from .segments import FRAMES_PER_SECOND
from .transcription import ResumePoint

FILES = (
    "transcribe these files, and those in these folders: 16 kHz WAV, or with the package av any audio or video; - is "
    "standard input"
)
OUTPUT_DIR = "write the transcripts to this folder, and skip recordings that are finished there"
OUTPUT_FORMAT = (
    f"txt: a line for each segment; {', '.join(SUBTITLES)}: subtitles; tsv: a table of times; json: the fields of "
    "openai-whisper; several, separated by commas, need a folder"
)
FORCE = "transcribe finished recordings again, and replace other files there"
CHUNKED = (
    "transcribe fixed windows of 30 seconds together: faster, but words at the borders are cut and no window continues "
    "the text before it"
)
PYTHON_ONLY = ("prepend_punctuations", "append_punctuations")  # options without a flag
BASIC = (
    *("audio", "output_dir", "output_format", "force", "task", "language", "word_timestamps"),
    *("initial_prompt", "vad", "live", "model", "draft_model", "drafter", "num_draft_tokens"),
)
DRAFTS = (
    "drafter",
    "draft_text",
    "num_draft_tokens",
    "max_ngram_size",
    "timed",
)  # decoding options that affect only drafts


class FormatNames(Value):
    """The names of formats, separated by commas."""

    expected = f"one of {', '.join(FORMATS)}, or several, separated by commas ({','.join(FORMATS)} for all)"
    metavar = "FORMAT,..."

    def accept(self, value: Any) -> Sequence[str]:
        return [Text(FORMATS).accept(name) for name in value.split(",")]


@dataclass(frozen=True)
class TranscribeFlags(RunFlags):
    """The flags of `transcribe`, except for transcription options and decoding options."""

    audio: A[Sequence[str], Text(), FILES] = ()
    output_dir: A[Path | None, File(), OUTPUT_DIR, Flag(short="-o", metavar="FOLDER")] = None
    output_format: A[Sequence[Sequence[str]], ListOf(FormatNames()), OUTPUT_FORMAT, Flag(short="-f")] = (("txt",),)
    force: A[bool, Bool(), FORCE] = False
    chunked: A[bool, Bool(), CHUNKED] = False
    slots: A[int, Int(1), "number of recordings, or of windows with --chunked, to transcribe together"] = DEFAULT_SLOTS

    def __post_init__(self) -> None:
        if not self.audio:
            raise InputError("is missing", "audio", Message("name a file, or transcribe live speech with {live}"))
        formats = self.formats
        if twice := next((name for name in formats if formats.count(name) > 1), None):
            raise InputError(f"{twice} is named twice", "output_format", "name each format once")
        if self.output_dir is None and len(formats) > 1:
            problem = f"several formats need a folder (got {', '.join(formats)})"
            raise InputError(problem, "output_format", Message("name one with {output_dir}"))
        if self.output_dir is None and self.force:
            raise InputError(Message("has no effect without {output_dir}"), "force", "give both, or leave it out")

    @property
    def formats(self) -> list[str]:
        return [name for names in self.output_format for name in names]

    def recordings(self) -> list[str]:
        """Return the recordings in the order of their transcripts. Raises `InputError` for conflicting flags."""
        found = recordings_in(self.audio, self.output_dir)
        count = len(found)
        if count > 1 and self.chunked:
            problem = f"is for one file (got {count}), as several are transcribed together anyway"
            raise InputError(problem, "chunked", "leave it out")
        if self.output_dir is not None:
            return without_repeats(found)
        if count > 1 and self.formats[0] in SUBTITLES:
            way_out = Message("write files with {output_dir}, or choose txt, tsv or json")
            raise InputError(f"{self.formats[0]} is printed for one file (got {count})", "output_format", way_out)
        return found


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
    """Transcribe the files, and return the exit status, which is 1 if some of several files cannot be transcribed."""
    require_one_process()
    given = vars(chosen)
    live = flags_from(LiveFlags, chosen)
    if live.live is not None:
        return start_live(live.live, live.live_speed, given)
    flags, subtitles = flags_from(TranscribeFlags, chosen), flags_from(SubtitleOptions, chosen)
    subtitles.require_effect(flags.formats)
    names = flags.recordings()
    files = [NamedFile("audio", name) for name in names]
    folder = None
    if flags.output_dir is not None:
        folder = OutputFolder(flags.output_dir, names, flags.formats, subtitles)
        folder.check()
    check_files(given, files, [] if folder is None else folder.files)
    options = transcription_options(given)
    if subtitles.first_given is not None:
        options["word_timestamps"] = True
    slots = slots_for(flags, names, "slots" in given)
    recordings: list[AudioSource] = []
    if folder is None:
        recordings, errors = open_recordings(names, options.get("audio_track"))
        if len(errors) > 1:
            raise InputError(f"none of the files can be read ({' | '.join(map(str, errors))})", "audio")
        if errors:
            raise errors[0]

    config, pair, language = open_models(given, options)
    run = Run(flags, config, pair, options, slots, shows_language=language is None)
    if folder is not None:
        return run.write(folder)
    report = Report(names, run.shows_language)
    return run.decode(report, recordings, Output(report, flags.formats[0], subtitles).print)


def start_live(name: str, speed: float | None, given: Mapping[str, Any]) -> int:
    """Open a live source and the models, and transcribe until the source ends. speed: see `open_live`."""
    require_live_flags(given)
    check_files(given, [NamedFile("live", name)])
    options = transcription_options(given)
    source = open_live(name, speed, options.pop("audio_track", None))
    config, pair, language = open_models(given, {**options, "temperature": 0.0})
    shows_language, stats = language is None, given.get("stats_json")
    return transcribe_live(source, config, pair, options, shows_language=shows_language, stats_json=stats)


def open_models(given: Mapping[str, Any], options: dict[str, Any]) -> tuple[RunConfig, ModelPair, str | None]:
    """Open the models without their weights, and print a description. Raises `InputError`.

    Returns: the configuration, the models, and the language of the speech (None to detect it).
    """
    decoding = argparse.Namespace(**{name: given[name] for name in given if name not in transcription_specs()})
    config = run_config_from(decoding, may_sample=options.get("temperature") != 0)
    pair = config.open()
    audio = pair.target.model.audio
    if audio is None:
        raise InputError(
            f"{model_name(pair.target.folder)} reads text and cannot transcribe",
            "model",
            Message("name a speech model, such as {model} openai/whisper-base"),
        )
    language = language_code(audio, TranscriptionOptions(**audio.defaults | options))
    say(config.describe(pair))
    return config, pair, language


@dataclass(frozen=True)
class Run:
    """Transcribes recordings with a model.

    Args:
        flags: The flags of the command.
        config: The configuration of the models and of decoding.
        pair: The opened models.
        options: The given transcription options, and options that they imply.
        slots: How many recordings, or windows of a recording, are transcribed together.
        shows_language: Whether the language is detected and printed.
    """

    flags: TranscribeFlags
    config: RunConfig
    pair: ModelPair
    options: Mapping[str, Any]
    slots: int
    shows_language: bool

    def text_settings(self) -> dict[str, Any]:
        """Return everything that determines a transcript, except the recording.

        Options with default values are left out, so that options added in later versions do not change the settings.
        Draft options are left out unless drafts can change the text under the acceptance rule.
        """
        audio = self.pair.target.model.audio
        assert audio is not None
        specs, own = transcription_specs(), asdict(TranscriptionOptions(**{**audio.defaults, **self.options}))
        decoding = {name: getattr(self.config.options, name) for name in DECODING if name not in DRAFTS}
        settings = {name: value for name, value in own.items() if value != specs[name].default}
        settings |= {name: value for name, value in decoding.items() if value != option_specs()[name].default}
        if self.config.options.rule != DEFAULT_RULE:
            settings |= self.config.output_settings(self.pair)
        settings |= {"chunked": self.flags.chunked, "dtype": self.config.models.dtype}
        return {**settings, "target_sha256": fingerprint(self.pair.target)}

    def write(self, folder: OutputFolder) -> int:
        """Write the transcripts that the folder does not contain yet, and return the exit status."""
        with folder.open(self.text_settings(), force=self.flags.force):
            unfinished, count = folder.unfinished, len(folder.recordings)
            if finished := count - len(unfinished):
                say(f"{finished} of {count} recordings are finished in {folder.folder}")
            names = [one.recording for one in unfinished]
            report = Report(names, self.shows_language, count - len(unfinished))
            recordings, errors = open_recordings(names, self.options.get("audio_track"))
            for number, error in enumerate(errors):
                report.fail(number, error)
            if not unfinished or errors:
                return self.finish(report, 0.0)

            def receive(event: TranscriptionEvent) -> None:
                one = unfinished[event.number]
                if event.result is not None:
                    folder.write(one, event.result)
                elif event.error is not None:
                    folder.give_up(one)
                elif event.resume_point is not None and event.resume_point.seek:
                    folder.advance(one, event.resume_point)

            def resume_point(number: int) -> ResumePoint | None:
                point = folder.resume_point(unfinished[number])
                if point is not None:
                    say(f"{one_line(names[number])}: continues at {duration(point.seek / FRAMES_PER_SECOND)}")
                return point

            try:
                return self.decode(report, recordings, lambda events: pass_on(report, events, receive), resume_point)
            except KeyboardInterrupt:
                say("\ntranscribe: interrupted; run the same command again to continue")
                return 130

    def decode(
        self,
        report: Report,
        recordings: Sequence[AudioSource],
        show: Callable[[Iterator[TranscriptionEvent]], None],
        resume_point: Callable[[int], ResumePoint | None] = lambda number: None,
    ) -> int:
        """Transcribe recordings, and return the exit status.

        show: Called with an iterator over all events.
        resume_point: Returns the point from which to continue the recording with a given number, or None.
        """
        with self.config.session(self.pair) as session:
            note_exactness(session, self.slots)
            start = time.monotonic()
            if self.flags.chunked:
                point = resume_point(0)
                events = session.transcribe_chunks(recordings[0], slots=self.slots, resume_from=point, **self.options)
            else:
                given = ({"audio": each, "resume_from": resume_point(i)} for i, each in enumerate(recordings))
                events = session.transcribe_batch(given, slots=self.slots, **self.options)
            show(events)
            seconds = time.monotonic() - start
            audio = report.seconds
            say(f"{duration(audio)} of audio in {seconds:.1f} s ({audio / seconds:.1f} times real time)")
            say(run_summary(report.stats, self.config.options, len(report.names), 0))
        return self.finish(report, seconds)

    def finish(self, report: Report, seconds: float) -> int:
        """Write the statistics if requested, and return the exit status."""
        if self.flags.stats_json is not None:
            names = list(report.names)
            settings = {"audio": names, "audio_seconds": report.seconds, "seconds": seconds, "slots": self.slots}
            settings |= self.pair.folders | dict(self.options) | self.config.draft_settings()
            write_stats(self.flags.stats_json, settings | report.stats.as_dict())
        if summary := report.summary():
            say(summary)
        return 1 if report.failed else 0


def slots_for(flags: TranscribeFlags, names: Sequence[str], is_given: bool) -> int:
    """Return the number of recordings or windows to transcribe together. Raises `InputError` for a useless --slots."""
    if flags.chunked:
        return flags.slots
    if is_given and len(names) == 1 and not any(map(os.path.isdir, flags.audio)):
        raise InputError(Message("has no effect without {chunked} or several files"), "slots", "leave it out")
    return min(flags.slots, len(names))


def transcription_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given transcription options, by name. Raises `InputError` for options without effect."""
    options = {name: given[name] for name in transcription_specs() if name in given}
    if options.get("language") == "none":  # detect the language, even if the model has a default
        options["language"] = None
    if "temperature" in given and "compression_ratio_threshold" in given:
        raise InputError(
            Message("has no effect with {temperature}, which turns the fallback to higher temperatures off"),
            "compression_ratio_threshold",
            "leave one of them out",
        )
    if given.get("num_beams", 1) > 1 and given.get("temperature", 0) > 0:
        raise InputError(
            Message(
                "{beams} has no effect at {temperature} {value}",
                beams=given["num_beams"],
                value=f"{given['temperature']:g}",
            ),
            "num_beams",
            "leave one out",
        )
    if "carry_initial_prompt" in given and "initial_prompt" not in given:
        raise InputError(
            Message("has no effect without {initial_prompt}"), "carry_initial_prompt", "give both, or leave it out"
        )
    if "chunked" in given and "clip_timestamps" in given:
        raise InputError(Message("cannot be combined with {chunked}"), "clip_timestamps", "leave one of them out")
    return options


def open_recording(name: str, track: int | None) -> AudioSource:
    """Open a file, a pipe or standard input. Raises `InputError`."""
    if name != "-":
        return open_source(name, track)
    if sys.stdin.isatty():
        raise InputError("- reads standard input, which is a terminal", "audio", "redirect a file to it, or name one")
    return AudioFile(sys.stdin.buffer.read(), "standard input", track)


def open_recordings(names: Sequence[str], track: int | None) -> tuple[list[AudioSource], list[InputError]]:
    """Open recordings, and read the first block of the first readable one, to report errors before the models load.

    Returns: the recordings, and, if none of them is readable, the error of each.
    """
    recordings = [open_recording(name, track) for name in names]
    errors = []
    for number, recording in enumerate(recordings):
        try:
            recordings[number] = BegunSource(recording)
        except InputError as error:
            errors.append(error)
        else:
            return recordings, []
    return recordings, errors
