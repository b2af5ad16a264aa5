"""Every flag of main.py, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A

from ..errors import InputError
from ..jobs.rows import FORMATS
from .draft_flags import DraftFlags
from .models import ModelNames
from .options import add_options, flag
from .parser import Flag, Parser, add_flags, real, whole

ALONE = {  # flags that do not go with these
    "input": ("prompt", "verify", "interactive", "compare", "show_draft", "trace"),
    "interactive": ("prompt", "compare", "verify", "stats_json"),
    "compare": ("verify", "regular_decode"),
}
ONLY_WITH_INPUT = ("output", "resume", "force", "slots", "max_memory", "input_format")
TRACE = "a line of JSON for every round; python -m speculative_decoding.report makes a picture of it"


@dataclass(frozen=True)
class Views:
    """Which prompts, what is done with each, and how it is watched."""

    prompt: A[
        str | None,
        Flag("what to decode; without it each line of standard input, and at a terminal an example", str, "TEXT"),
    ] = None
    interactive: A[bool, Flag("a console: every line is a prompt; /help lists its commands", also=["-i"])] = False
    compare: A[bool, Flag("decode with the target alone and with the draft alone too, and compare")] = False
    verify: A[bool, Flag("decode without a draft as well and compare; exit status 1 if they differ")] = False
    regular_decode: A[bool, Flag("the target alone, without a draft")] = False
    show_draft: A[
        str | None,
        Flag(
            "show which tokens were accepted, rejected and corrected, in the text or in a line per round",
            ("text", "rounds"),
            const="text",
        ),
    ] = None
    trace: A[Path | None, Flag(TRACE, Path, "FILE")] = None
    stats_json: A[Path | None, Flag("write settings and statistics there", Path, "FILE")] = None


@dataclass(frozen=True)
class Files:
    """A file of prompts, where its records go, and how many rows are decoded together."""

    input: A[
        str,
        Flag(
            "decode each line: text (.txt), or a JSON object (.jsonl) with prompt, its own options, and fields to "
            "carry through; - is standard input",
            str,
            "FILE",
        ),
    ]
    input_format: A[
        str | None,
        Flag("what the lines are (default: by the file's name, or else by whether the first begins with {)", FORMATS),
    ] = None
    output: A[
        Path | None,
        Flag("a JSON object for each line of the input, in its order (default: standard output)", Path, "FILE"),
    ] = None
    resume: A[bool, Flag("go on with an output where it was interrupted, or begin it")] = False
    force: A[bool, Flag("replace an existing output")] = False
    slots: A[int, Flag("rows decoded together (default: 8)", whole(1), "N")] = 8
    max_memory: A[float | None, Flag("use fewer slots rather than more memory", real(0, above=True), "GB")] = None


def main_parser() -> Parser:
    parser = Parser(
        prog="main.py",
        description="Speculative decoding for T5-like models: a draft proposes, the target verifies, the text is the "
        "target's own. Text goes to standard output, everything else to standard error.",
    )
    add_flags(parser, "prompts and views", Views)
    add_flags(parser, "many prompts", Files)
    add_flags(parser, "models", ModelNames)
    add_options(parser)
    add_flags(parser, "draft vocabulary and n-gram stores", DraftFlags)
    return parser


def require_consistent(given: Collection[str]) -> None:
    """Raise `InputError` for flags that contradict each other or would be ignored."""
    for name, others in ALONE.items():
        for other in others:
            if name in given and other in given:
                raise InputError(f"{flag(other)} does not go with {flag(name)}; leave one of them out")
    for name in ONLY_WITH_INPUT:
        if name in given and "input" not in given:
            raise InputError(f"{flag(name)} belongs to a file of prompts; give --input too, or leave it out")
    for name in ("resume", "force"):
        if name in given and "output" not in given:
            raise InputError(f"{flag(name)} needs --output: only a file can be gone on with or replaced")
    if "resume" in given and "force" in given:
        raise InputError("--resume goes on with the output and --force replaces it; leave one of them out")
