"""Defines the flags of main.py and rejects contradictory combinations."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated as A
from typing import Any

from ..errors import InputError, Name
from ..jobs.input import INPUT_FORMATS
from ..jobs.output import journal_path
from ..sampling import GenerationOptions
from ..sampling.options import FOR_SPEECH, option_specs
from ..sampling.values import PYTHON_ONLY, Bool, Flag, Int, Number, Text
from ..speech.formats import FORMATS
from ..speech.options import TranscriptionOptions, transcription_specs
from .parser import File, Parser, add_flags, flag
from .run_config import DraftFlags, ModelFlags

# decoding options whose flags set options of a transcription
SHARED_FLAGS = {"src_lang": "language", "max_tokens": "sample_len", "temperature": "temperature"}
SPEECH_ONLY = [
    name
    for name, spec in transcription_specs().items()
    if PYTHON_ONLY not in spec.marks and name not in SHARED_FLAGS.values()
]
TEXT_ONLY = [  # decoding options without effect on a transcription
    name for name, spec in option_specs().items() if FOR_SPEECH not in spec.marks and name not in SHARED_FLAGS
]
CONFLICTS = {  # flags that cannot be combined with these
    "input": ("prompt", "verify", "interactive", "compare", "show_draft", "trace"),
    "interactive": ("prompt", "compare", "verify", "stats_json", "num_return_sequences"),
    "compare": ("verify", "baseline"),
    "resume": ("force",),
    "baseline": ("drafter",),
    "audio": ("prompt", "input", "interactive", "compare", "verify", "show_draft", "trace", *TEXT_ONLY),
    "chunked": ("clip_timestamps",),
}
REQUIRES = {  # flags that have no effect without another
    **dict.fromkeys([*SPEECH_ONLY, "output_format", "chunked"], "audio"),
    "output": "input",
    "max_memory": "input",
    "input_format": "input",
    "resume": "output",
    "force": "output",
    "json": "doctor",
}
DOCTOR_OPTIONS = ("src_lang", "tgt_lang", "recalibrate")  # options that --doctor accepts, besides the model flags
READ_FILES = ("input", "draft_vocab_text")
WRITTEN_FILES = ("output", "stats_json", "trace", "ngram_store")

PROMPT = "text to decode (default: each line of standard input, or an example at a terminal)"
AUDIO = "transcribe these files: 16 kHz WAV, and with the package av every audio and video format"
OUTPUT_FORMAT = "text, subtitles (srt, vtt), or json with the fields of openai-whisper (a list for several files)"
CHUNKED = (
    "transcribe fixed windows of 30 seconds together: faster, but words at the borders are cut and no window continues "
    "the text before it"
)
SHOW_DRAFT = "show accepted, rejected and corrected tokens, in the text or in one line per round"
INPUT = (
    "decode each line of a file: text (.txt), or a JSON object (.jsonl) with a prompt, options, and fields to copy to "
    "the output; - reads standard input"
)
INPUT_FORMAT = "format of the lines (default: by the file name, else jsonl if the first line starts with {)"
OUTPUT = "file for the results, one JSON object per input line, in input order (default: standard output)"
PARALLEL = (
    "tensor: split the target across the processes; data: load it in each process, and split the lines of --input "
    "(default: data with --input, else tensor)"
)
DOCTOR = "measure this device with these models, test kernels and drafts, print a report; exit status 1 if a test fails"
JSON = "also write the report as JSON, without paths, names or prompts; - writes to standard output"


@dataclass(frozen=True)
class Views:
    """Sources of prompts, and output views."""

    prompt: A[str | None, Text(may_be_empty=True), "the prompt, as an alternative to PROMPT"] = None
    interactive: A[bool, Bool(), "start a console: each line is a prompt, /help lists commands", Flag(short="-i")] = (
        False
    )
    compare: A[bool, Bool(), "also decode without a draft and with only the draft model, and compare"] = False
    verify: A[bool, Bool(), "also decode without a draft, and compare; exit with status 1 if the tokens differ"] = False
    baseline: A[bool, Bool(), "decode without a draft"] = False
    show_draft: A[str | None, Text(("text", "rounds")), SHOW_DRAFT, Flag(bare="text")] = None
    trace: A[Path | None, File(), "write one JSON line per round to this file"] = None
    stats_json: A[Path | None, File(), "write settings and statistics to this file as JSON"] = None


@dataclass(frozen=True)
class Files:
    """Flags for decoding a file of prompts."""

    input: A[str, Text(may_be_empty=True), INPUT, Flag(metavar="FILE")] = ""
    input_format: A[str | None, Text(INPUT_FORMATS), INPUT_FORMAT] = None
    output: A[Path | None, File(), OUTPUT] = None
    resume: A[bool, Bool(), "continue an interrupted output file, or start a new one"] = False
    force: A[bool, Bool(), "replace an existing output file"] = False
    slots: A[int, Int(1), "number of lines or recordings to decode together"] = 8
    max_memory: A[
        float | None,
        Number(0, exclusive=True),
        "memory limit; use fewer slots to stay below it",
        Flag(metavar="GB", parameter="max_memory_gb"),
    ] = None


@dataclass(frozen=True)
class Recordings:
    """Flags for audio files."""

    audio: A[Sequence[str], Text(), AUDIO, Flag(metavar="FILE")] = ()
    output_format: A[str, Text(FORMATS), OUTPUT_FORMAT] = "text"
    chunked: A[bool, Bool(), CHUNKED] = False


@dataclass(frozen=True)
class Doctor:
    """Flags for the device report."""

    doctor: A[bool, Bool(), DOCTOR] = False
    json: A[str | None, Text(), JSON, Flag(metavar="FILE")] = None


@dataclass(frozen=True)
class Together:
    """Flags for runs with several processes."""

    parallel: A[str | None, Text(("tensor", "data")), PARALLEL] = None


def main_parser(program: str = "main.py") -> Parser:
    parser = Parser(
        prog=program,
        description="Lossless speculative decoding for encoder-decoder models: a draft proposes tokens, and the target "
        "verifies them. The text goes to standard output, everything else to standard error.",
    )
    parser.add_argument("text", nargs="?", default=argparse.SUPPRESS, metavar="PROMPT", help=PROMPT)
    add_flags(parser, "prompt and output", Views)
    add_flags(parser, "files of prompts", Files)
    add_flags(parser, "speech", Recordings, lists=("audio",))
    add_flags(parser, "transcription", TranscriptionOptions, without=[*SHARED_FLAGS.values()])
    add_flags(parser, "diagnosis", Doctor)
    add_flags(parser, "several processes, started by mlx.launch", Together)
    add_decoding_flags(parser)
    parser.flags |= {own: flag(name) for name, own in SHARED_FLAGS.items()}
    return parser


def add_decoding_flags(
    parser: Parser, title: str = "decoding", *, without: Collection[str] = (), lists: Collection[str] = ()
) -> None:
    """Add the flags of all commands that decode. without, lists: see `add_flags`."""
    add_flags(parser, "models", ModelFlags)
    add_flags(parser, title, GenerationOptions, without=without, lists=lists)
    add_flags(parser, "draft vocabulary, n-gram stores, calibration", DraftFlags)


def transcribe_parser(program: str) -> Parser:
    parser = Parser(prog=program, description="Transcribe recordings with a speech model such as Whisper.")
    parser.add_argument("audio", nargs="+", metavar="FILE", help=AUDIO)
    add_flags(parser, "output", Recordings, without=("audio",))
    add_flags(parser, "transcription", TranscriptionOptions)
    for title, kind, own in (("several recordings", Files, "slots"), ("statistics", Views, "stats_json")):
        add_flags(parser, title, kind, without=[each.name for each in fields(kind) if each.name != own])
    add_decoding_flags(parser, without=[*TEXT_ONLY, *SHARED_FLAGS])
    return parser


def transcription_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a transcription that were given, by name. Raises `InputError`."""
    given = vars(args)
    options = {name: given[name] for name in (*SPEECH_ONLY, *SHARED_FLAGS.values()) if name in given}
    options |= {name: given[other] for other, name in SHARED_FLAGS.items() if other in given}
    if options.get("language") == "none":  # detect it, whatever the model's default is
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
    TranscriptionOptions(**options)
    return options


def take_prompt(args: argparse.Namespace) -> None:
    """Store the positional prompt as --prompt. Raises `InputError` if both are given."""
    if "text" in args:
        if "prompt" in args:
            raise InputError("cannot be combined with a positional prompt", "prompt", "leave one of them out")
        args.prompt = args.text
        del args.text


def require_consistent(given: Mapping[str, Any]) -> None:
    """Raise `InputError` for flags that contradict each other or have no effect."""
    kinds = Views, Files, Recordings, GenerationOptions, DraftFlags
    ignored = [each.name for kind in kinds for each in fields(kind) if each.name not in DOCTOR_OPTIONS]
    for name, others in {"doctor": ignored, **CONFLICTS}.items():
        for other in others:
            if name in given and other in given:
                raise InputError(("cannot be combined with ", Name(name)), other, "leave one of them out")
    require_different_files(given)
    require_suitable_recordings(given)
    for name, other in REQUIRES.items():
        if name in given and other not in given:
            raise InputError(("has no effect without ", Name(other)), name, "give both, or leave it out")


def require_suitable_recordings(given: Mapping[str, Any]) -> None:
    """Raise `InputError` for flags that do not fit the number of recordings."""
    names = given.get("audio", ())
    shown = given.get("output_format")
    if len(names) > 1 and shown in ("srt", "vtt"):
        raise InputError(f"{shown} is for one file (got {len(names)})", "output_format", "choose text or json")
    if len(names) > 1 and "chunked" in given:
        raise InputError(
            f"is for one file (got {len(names)}), as several are transcribed together anyway", "chunked", "leave it out"
        )
    if "slots" in given and not ("input" in given or "chunked" in given or len(names) > 1):
        raise InputError(
            ("has no effect without ", Name("input"), " or several files to transcribe"), "slots", "leave it out"
        )


def require_different_files(given: Mapping[str, Any]) -> None:
    """Raise `InputError` if a file to write is also given for another purpose."""
    read: list[tuple[tuple[str, ...], Path]] = [
        ((Name(name),), Path(given[name])) for name in READ_FILES if name in given
    ]
    read += [((Name("audio"),), Path(name)) for name in given.get("audio", ())]
    written: list[tuple[tuple[str, ...], Path]] = [
        ((Name(name),), Path(given[name])) for name in WRITTEN_FILES if name in given
    ]
    if "output" in given:
        written.append(((Name("output"), "'s journal"), journal_path(given["output"])))
    for (name, *_), path in written:
        for other, other_path in (*read, *written):
            if (name,) != other[:1] and path.resolve() == other_path.resolve():
                raise InputError((f"{path} is already used by ", *other), name, "name another")
