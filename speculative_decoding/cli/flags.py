"""The flags of main.py in groups, and which of them contradict each other."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated as A
from typing import Any

from ..errors import InputError
from ..jobs.input import INPUT_FORMATS
from ..jobs.output import journal_path
from ..sampling import GenerationOptions
from ..sampling.values import Bool, Int, Number, Text
from .parser import File, Parser, add_flags, flag, refuse_removed_options
from .run_config import DraftFlags, ModelFlags

FOR_PYTHON = ("logprobs", "timed")  # options of decoding that are no flags
APART = {  # flags that do not go with these
    "input": ("prompt", "verify", "interactive", "compare", "show_draft", "trace"),
    "interactive": ("prompt", "compare", "verify", "stats_json", "num_return_sequences"),
    "compare": ("verify", "baseline"),
    "resume": ("force",),
    "baseline": ("drafter",),
}
NEEDED = dict.fromkeys(("output", "slots", "max_memory", "input_format"), "input") | dict.fromkeys(
    ("resume", "force"), "output"
)
NEEDED["json"] = "doctor"
OF_DOCTOR = ("src_lang", "tgt_lang", "recalibrate")  # the options that --doctor takes
READ, WRITTEN = ("input", "draft_vocab_text"), ("output", "stats_json", "trace", "ngram_store")
PROMPT = "what to decode; without it each line of standard input, and at a terminal an example"
SHOW_DRAFT = "show which tokens were accepted, rejected and corrected, in the text or in a line per round"
TRACE = "write a line of JSON there for every round"
INPUT = (
    "decode each line: text (.txt), or a JSON object (.jsonl) with prompt, its own options, and fields to carry "
    "through; - is standard input"
)
INPUT_FORMAT = "what the lines are (default: by the file's name, or else by whether the first begins with {)"
OUTPUT = "a JSON object for each line of the input, in its order (default: standard output)"
PARALLEL = (
    "tensor: each process has a share of the target; data: each has all of it, and a share of the lines of --input "
    "(default: data with --input, else tensor)"
)
DOCTOR = (
    "measure this device with these models, check kernels and drafts, print a report; exit status 1 if a check fails"
)
JSON = "write the report there as JSON too, without paths, names or prompts (- is standard output)"


@dataclass(frozen=True)
class Views:
    """Which prompts, what is done with each, and how it is watched."""

    prompt: A[str | None, Text(may_be_empty=True), PROMPT] = None
    interactive: A[bool, Bool(), "a console: every line is a prompt; /help lists its commands"] = False
    compare: A[bool, Bool(), "decode with the target alone and with the draft alone too, and compare"] = False
    verify: A[bool, Bool(), "decode without a draft as well and compare; exit status 1 if they differ"] = False
    baseline: A[bool, Bool(), "the target alone, without a draft"] = False
    show_draft: A[str | None, Text(("text", "rounds")), SHOW_DRAFT] = None
    trace: A[Path | None, File(), TRACE] = None
    stats_json: A[Path | None, File(), "write settings and statistics there"] = None


@dataclass(frozen=True)
class Files:
    """A file of prompts, where its records go, and how many rows are decoded together."""

    input: A[str, Text(may_be_empty=True), INPUT] = ""
    input_format: A[str | None, Text(INPUT_FORMATS), INPUT_FORMAT] = None
    output: A[Path | None, File(), OUTPUT] = None
    resume: A[bool, Bool(), "go on with an output where it was interrupted, or begin it"] = False
    force: A[bool, Bool(), "replace an existing output"] = False
    slots: A[int, Int(1), "rows decoded together"] = 8
    max_memory: A[float | None, Number(0, exclusive=True), "use fewer slots rather than more memory"] = None


@dataclass(frozen=True)
class Doctor:
    """A report on this device and these models."""

    doctor: A[bool, Bool(), DOCTOR] = False
    json: A[str | None, Text(), JSON] = None


@dataclass(frozen=True)
class Together:
    """What several processes share."""

    parallel: A[str | None, Text(("tensor", "data")), PARALLEL] = None


def main_parser(program: str = "main.py") -> Parser:
    parser = Parser(
        prog=program,
        description="Speculative decoding for encoder-decoders: a draft proposes, the target verifies, the text is the "
        "target's own. Text goes to standard output, everything else to standard error.",
    )
    parser.add_argument("text", nargs="?", default=argparse.SUPPRESS, metavar="PROMPT", help=PROMPT)
    add_flags(parser, "prompts and views", Views)
    add_flags(parser, "many prompts", Files)
    add_flags(parser, "diagnosis", Doctor)
    add_flags(parser, "several machines, with mlx.launch", Together)
    add_decoding_flags(parser)
    return parser


def add_decoding_flags(
    parser: Parser, title: str = "decoding", *, without: Collection[str] = (), lists: Collection[str] = ()
) -> None:
    """Those of all commands that decode. without, lists: see `add_flags`."""
    add_flags(parser, "models", ModelFlags)
    add_flags(parser, title, GenerationOptions, without=(*FOR_PYTHON, *without), lists=lists)
    add_flags(parser, "draft vocabulary, n-gram stores, calibration", DraftFlags)
    refuse_removed_options(parser)


def take_prompt(args: argparse.Namespace) -> None:
    """Let the positional prompt take the place of --prompt. Raises `InputError` if both are given."""
    if "text" in args:
        if "prompt" in args:
            raise InputError(f"--prompt: the prompt is given already, as {args.text!r}; leave one of them out")
        args.prompt = args.text
        del args.text


def require_consistent(given: Mapping[str, Any]) -> None:
    """Raise `InputError` for flags that contradict each other or would be ignored."""
    kinds = Views, Files, GenerationOptions, DraftFlags
    ignored = [each.name for kind in kinds for each in fields(kind) if each.name not in OF_DOCTOR]
    for name, others in {"doctor": ignored, **APART}.items():
        for other in others:
            if name in given and other in given:
                raise InputError(f"{flag(other)} does not go with {flag(name)}; leave one of them out")
    require_different_files(given)
    for name, other in NEEDED.items():
        if name in given and other not in given:
            raise InputError(f"{flag(name)} has no effect without {flag(other)}; give both, or leave it out")


def require_different_files(given: Mapping[str, Any]) -> None:
    """Raise `InputError` where a file that is to be written is given for something else too."""
    read, written = ([(flag(name), Path(given[name])) for name in names if name in given] for names in (READ, WRITTEN))
    if "output" in given:
        written.append(("--output's journal", journal_path(given["output"])))
    for what, path in written:
        for other, its in (*read, *written):
            if what != other and path.resolve() == its.resolve():
                raise InputError(f"{what} {path}: is the file of {other} too; name another")
