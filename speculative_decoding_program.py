"""Starts a program of `speculative_decoding`. A module of its own, because importing the package takes .3 seconds."""

import os
import signal
import sys
from importlib import import_module
from typing import NoReturn


def start(module: str = "programs") -> NoReturn:
    """Run a module of `speculative_decoding.cli` and exit with its status. Ctrl-C during its import prints one line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, for example by nohup
        signal.signal(signal.SIGINT, exit_at_once)
    sys.exit(import_module(f"speculative_decoding.cli.{module}").main())


def exit_at_once(*_: object) -> NoReturn:
    """Handle Ctrl-C without an exception, which some libraries turn into other errors while they are imported."""
    os.write(2, f"\n{os.path.basename(sys.argv[0])}: interrupted\n".encode())
    os._exit(130)
