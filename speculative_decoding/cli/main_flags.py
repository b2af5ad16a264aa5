"""Every flag of main.py, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A

from ..errors import InputError
from ..jobs.rows import FORMATS
from ..sampling import GenerationOptions
from ..sampling.values import Number, Switch, Text, Whole
from .draft_flags import DraftFlags
from .models import ModelNames
from .parser import File, Parser, add_flags, flag

FOR_PYTHON = ("logprobs", "timed")  # options of decoding that are no flags
APART = {  # flags that do not go with these
    "input": ("prompt", "verify", "interactive", "compare", "show_draft", "trace"),
    "interactive": ("prompt", "compare", "verify", "stats_json"),
    "compare": ("verify", "regular_decode"),
    "resume": ("force",),
    "regular_decode": ("drafter",),
}
NEEDED = dict.fromkeys(("output", "slots", "max_memory", "input_format"), "input") | dict.fromkeys(
    ("resume", "force"), "output"
)
PROMPT = "what to decode; without it each line of standard input, and at a terminal an example"
SHOW_DRAFT = "show which tokens were accepted, rejected and corrected, in the text or in a line per round"
TRACE = "a line of JSON for every round; python -m speculative_decoding.report makes a picture of it"
INPUT = (
    "decode each line: text (.txt), or a JSON object (.jsonl) with prompt, its own options, and fields to carry "
    "through; - is standard input"
)
INPUT_FORMAT = "what the lines are (default: by the file's name, or else by whether the first begins with {)"
OUTPUT = "a JSON object for each line of the input, in its order (default: standard output)"


@dataclass(frozen=True)
class Views:
    """Which prompts, what is done with each, and how it is watched."""

    prompt: A[str | None, Text(may_be_empty=True), PROMPT] = None
    interactive: A[bool, Switch(), "a console: every line is a prompt; /help lists its commands"] = False
    compare: A[bool, Switch(), "decode with the target alone and with the draft alone too, and compare"] = False
    verify: A[bool, Switch(), "decode without a draft as well and compare; exit status 1 if they differ"] = False
    regular_decode: A[bool, Switch(), "the target alone, without a draft"] = False
    show_draft: A[str | None, Text(("text", "rounds")), SHOW_DRAFT] = None
    trace: A[Path | None, File(), TRACE] = None
    stats_json: A[Path | None, File(), "write settings and statistics there"] = None


@dataclass(frozen=True)
class Files:
    """A file of prompts, where its records go, and how many rows are decoded together."""

    input: A[str, Text(may_be_empty=True), INPUT] = ""
    input_format: A[str | None, Text(FORMATS), INPUT_FORMAT] = None
    output: A[Path | None, File(), OUTPUT] = None
    resume: A[bool, Switch(), "go on with an output where it was interrupted, or begin it"] = False
    force: A[bool, Switch(), "replace an existing output"] = False
    slots: A[int, Whole(1), "rows decoded together"] = 8
    max_memory: A[float | None, Number(0, above=True), "use fewer slots rather than more memory"] = None


def main_parser() -> Parser:
    parser = Parser(
        prog="main.py",
        description="Speculative decoding for T5-like models: a draft proposes, the target verifies, the text is the "
        "target's own. Text goes to standard output, everything else to standard error.",
    )
    add_flags(parser, "prompts and views", Views)
    add_flags(parser, "many prompts", Files)
    add_flags(parser, "models", ModelNames)
    add_flags(parser, "decoding", GenerationOptions, without=FOR_PYTHON)
    add_flags(parser, "draft vocabulary and n-gram stores", DraftFlags)
    return parser


def require_consistent(given: Collection[str]) -> None:
    """Raise `InputError` for flags that contradict each other or would be ignored."""
    for name, others in APART.items():
        for other in others:
            if name in given and other in given:
                raise InputError(f"{flag(other)} does not go with {flag(name)}; leave one of them out")
    for name, other in NEEDED.items():
        if name in given and other not in given:
            raise InputError(f"{flag(name)} has no effect without {flag(other)}; give both, or leave it out")
