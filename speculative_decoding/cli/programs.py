"""The commands of `speculative-decoding COMMAND ...`, also run as `python -m speculative_decoding COMMAND ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from ..version import __version__
from . import common

PROGRAM = "speculative-decoding"
COMMANDS = {  # name: (module of this package, implied flags, help text)
    "generate": (".main", (), "generate text for a prompt or a file of prompts"),
    "console": (".main", ("--interactive",), "decode prompts interactively, with commands and a history"),
    "transcribe": ("..speech.command", (), "transcribe recordings with a speech model"),
    "doctor": (".main", ("--doctor",), "measure this device and check kernels and drafts"),
    "convert": (".convert", (), "convert a Hugging Face checkpoint to a folder that loads fast"),
    "verify": (".verify", (), "check that drafts leave the output unchanged"),
    "train": ("..training.command", (), "train a draft for a target and a kind of text"),
    "serve": ("..server.command", (), "serve many clients over HTTP"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in COMMANDS:
        module, implied, _ = COMMANDS[name]
        status: int = import_module(module, __package__).main([*implied, *rest], f"{PROGRAM} {name}")
        return status
    if name in ("-h", "--help"):
        lines = [f"  {command:11}{text}" for command, (*_, text) in COMMANDS.items()]
        print("\n".join([f"usage: {PROGRAM} COMMAND ...", "", *lines, "", "COMMAND --help lists its options"]))
        return 0
    if name == "--version":
        print(f"{PROGRAM} {__version__}")
        return 0
    if similar := get_close_matches(name, COMMANDS, 1):
        common.say(f"{PROGRAM}: error: {name}: unknown command; did you mean {similar[0]}?")
    else:  # perhaps a prompt, which is not repeated
        common.say(f"{PROGRAM}: error: the first argument must be one of {', '.join(COMMANDS)}; for a prompt, generate")
    return 2
