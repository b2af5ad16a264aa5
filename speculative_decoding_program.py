"""Starts a program of `speculative_decoding`.

It is outside the package so that Ctrl-C is handled while the package is imported, which takes 0.3 seconds.
"""

import os
import signal
import sys
from importlib import import_module
from typing import NoReturn


def start(module: str = "programs") -> NoReturn:
    """Run a module of `speculative_decoding.cli` and exit with its status."""
    handle_ctrl_c(os.path.basename(sys.argv[0]))
    sys.exit(import_module(f"speculative_decoding.cli.{module}").main())


def handle_ctrl_c(program: str) -> None:
    """Exit with one line on Ctrl-C during the imports, because some libraries turn an exception into other errors."""

    def exit_at_once(*_: object) -> NoReturn:
        os.write(2, f"\n{program}: interrupted\n".encode())
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise it is ignored, as under nohup
        signal.signal(signal.SIGINT, exit_at_once)
