"""The commands of `speculative-decoding COMMAND ...`, also run as `python -m speculative_decoding COMMAND ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from ..errors import InputError, similar_names
from ..subpackages import has_subpackage, require_subpackage
from ..version import __version__
from . import common

PROGRAM = "speculative-decoding"
COMMANDS = {  # name: (module, subpackage that contains the command or None, help text)
    "generate": ("cli.main", None, "generate text for a prompt, or for each line of standard input"),
    "console": ("cli.console", None, "decode prompts interactively, with commands and a history"),
    "batch": ("jobs.command", "jobs", "decode a file of prompts to a file of records"),
    "document": (
        "documents.command",
        "documents",
        "decode whole documents: text, Markdown, HTML, subtitles, JSON lines",
    ),
    "transcribe": ("speech.command", "speech", "transcribe recordings with a speech model"),
    "serve": ("server.command", "server", "serve many clients over HTTP"),
    "train": ("training.command", "training", "train a draft for a target and a kind of text"),
    "convert": ("cli.convert", None, "convert a Hugging Face checkpoint to a folder that loads fast"),
    "verify": ("cli.verify", None, "check that drafts leave the output unchanged"),
    "doctor": ("doctor.command", "doctor", "measure this device and check kernels and drafts"),
}
COMMANDS_BY_OTHER_NAME = {  # the names that other programs or users may use for a command
    **dict.fromkeys(("translate", "translation", "translator", "localize"), "document"),
    **dict.fromkeys(("whisper", "subtitle", "subtitles", "caption", "captions", "stt", "asr", "live"), "transcribe"),
    **dict.fromkeys(("run", "infer", "inference", "predict", "summarize", "prompt"), "generate"),
    **dict.fromkeys(("chat", "repl", "shell", "interactive"), "console"),
    **dict.fromkeys(("job", "jobs"), "batch"),
    **dict.fromkeys(("server", "api"), "serve"),
    **dict.fromkeys(("finetune", "fine-tune", "distill"), "train"),
    **dict.fromkeys(("quantize", "quantise", "download", "pull"), "convert"),
    **dict.fromkeys(("test", "check", "compare"), "verify"),
    **dict.fromkeys(("bench", "benchmark", "info", "diagnose"), "doctor"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in COMMANDS:
        return run_command(name, rest, f"{PROGRAM} {name}")
    commands = {
        each: about
        for each, (_, subpackage, about) in COMMANDS.items()
        if subpackage is None or has_subpackage(subpackage)
    }
    if name in ("-h", "--help"):
        lines = [f"  {each:11}{about}" for each, about in commands.items()]
        print("\n".join([f"usage: {PROGRAM} COMMAND ...", "", *lines, "", "COMMAND --help lists its options"]))
        return 0
    if name == "--version":
        print(f"{PROGRAM} {__version__}")
        return 0
    meant = [each for each in [COMMANDS_BY_OTHER_NAME.get(name)] if each in commands] or similar_names(
        name, commands, 1
    )
    if meant:
        common.say(f"{PROGRAM}: error: {name}: unknown command; did you mean {meant[0]}?")
    else:  # the argument may be a prompt, so it is not printed
        common.say(f"{PROGRAM}: error: the first argument must be one of {', '.join(commands)}; for a prompt, generate")
    return 2


def run_command(name: str, argv: Sequence[str] | None = None, program: str | None = None) -> int:
    """Run a command and return its exit status. program: its name in messages."""
    module, subpackage, _ = COMMANDS[name]
    program = program or f"python -m speculative_decoding.{name}"
    if subpackage is not None:
        try:
            require_subpackage(subpackage, name)
        except InputError as error:
            common.say(f"{PROGRAM}: error: {error}")
            return 2
    status: int = import_module(f"..{module}", __package__).main(argv, program)
    return status
