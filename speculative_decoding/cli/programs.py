"""`speculative-decoding COMMAND ...`, or `python -m speculative_decoding COMMAND ...`: which commands there are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from . import common

PROGRAM = "speculative-decoding"
COMMANDS = {  # name: (module beside this one, flags that go without saying, what --help says)
    "generate": ("main", (), "text for a prompt, or for a file of prompts"),
    "console": ("main", ("--interactive",), "a prompt a line, with commands and history"),
    "doctor": ("main", ("--doctor",), "what this device measures, and whether everything works"),
    "convert": ("convert", (), "a Hugging Face checkpoint -> a folder that loads at once"),
    "verify": ("verify", (), "does a draft change anything?"),
    "train": ("train", (), "a draft for a target and a kind of text"),
    "serve": ("serve", (), "texts for many clients at once, over HTTP"),
}


def main(argv: Sequence[str] | None = None) -> int:
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in COMMANDS:
        module, implied, _ = COMMANDS[name]
        status: int = import_module(f".{module}", __package__).main([*implied, *rest], f"{PROGRAM} {name}")
        return status
    if name in ("-h", "--help"):
        about = [f"  {each:10}{text}" for each, (*_, text) in COMMANDS.items()]
        print("\n".join([f"usage: {PROGRAM} COMMAND ...", "", *about, "", "COMMAND --help lists its options"]))
    else:
        common.say(f"{PROGRAM}: error: {name!r} is no command; choose one of {', '.join(COMMANDS)}")
        return 2
    return 0
