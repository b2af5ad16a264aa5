"""Every flag of main.py: its own, and those made from options. Which contradict each other is said at the end."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..jobs.rows import FORMATS
from .draft_flags import add_draft_flags
from .models import add_models
from .options import add_options, flag
from .parser import Parser, real, whole

ALONE = {  # flags that do not go with these
    "input": ("prompt", "verify", "interactive", "compare", "show_draft", "trace"),
    "interactive": ("prompt", "compare", "verify", "stats_json"),
    "compare": ("verify", "regular_decode"),
}
ONLY_WITH_INPUT = ("output", "resume", "force", "slots", "max_memory", "input_format")


@dataclass(frozen=True)
class Views:
    """What is decoded at a time, and how it is watched. show_draft: None, "text" or "rounds"."""

    prompt: str | None = None
    compare: bool = False
    verify: bool = False
    show_draft: str | None = None
    trace: Path | None = None
    stats_json: Path | None = None


@dataclass(frozen=True)
class Files:
    """A file of prompts, where its records go, and how many rows are decoded together."""

    input: str
    input_format: str | None = None
    output: Path | None = None
    resume: bool = False
    force: bool = False
    slots: int = 8
    max_memory: float | None = None
    stats_json: Path | None = None


def main_parser() -> Parser:
    parser = Parser(
        prog="main.py",
        argument_default=argparse.SUPPRESS,
        description="Speculative decoding for T5-like models: a draft proposes, the target verifies, the text is the "
        "target's own. Text goes to standard output, everything else to standard error.",
    )
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        help="what to decode; without it each line of standard input, and at a terminal an example",
    )
    add_views(parser)
    add_files(parser)
    add_models(parser)
    add_options(parser)
    add_draft_flags(parser)
    add = parser.add_argument
    add("--regular-decode", action="store_true", help="the target alone, without a draft")
    add(
        "--verify", action="store_true", help="decode without a draft as well and compare; exit status 1 if they differ"
    )
    add("--stats-json", type=Path, metavar="FILE", help="write settings and statistics there")
    return parser


def add_views(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("watching it work").add_argument
    add("--interactive", "-i", action="store_true", help="a console: every line is a prompt; /help lists its commands")
    add("--compare", action="store_true", help="decode with the target alone and with the draft alone too, and compare")
    add(
        "--show-draft",
        nargs="?",
        const="text",
        choices=("text", "rounds"),
        help="show which tokens were accepted, rejected and corrected, in the text or in a line per round",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="a line of JSON for every round; python -m speculative_decoding.report makes a picture of it",
    )


def add_files(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("many prompts").add_argument
    add(
        "--input",
        metavar="FILE",
        help="decode each line: text (.txt), or a JSON object (.jsonl) with prompt, its own options, and fields to "
        "carry through; - is standard input",
    )
    add(
        "--input-format",
        choices=FORMATS,
        help="what the lines are (default: by the file's name, or else by whether the first line begins with {)",
    )
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="a JSON object for each line of the input, in its order (default: standard output)",
    )
    add("--resume", action="store_true", help="go on with an output where it was interrupted, or begin it")
    add("--force", action="store_true", help="replace an existing output")
    add("--slots", type=whole(1), metavar="N", help=f"rows decoded together (default: {Files.slots})")
    add(
        "--max-memory",
        type=real(0, above=True),
        metavar="GB",
        help="use fewer slots rather than more memory than this",
    )


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
