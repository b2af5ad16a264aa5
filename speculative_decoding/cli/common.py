"""What every command shares: one line for every error, and an exit status."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def read_text(path: Path, what: str) -> str:
    """Raises `InputError` that says what the file was to be."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {path}: not readable as UTF-8 text ({error})") from error


def run(program: str, command: Callable[[], int]) -> int:
    """Exit status of a command: 2 and one line for bad input, 130 for Ctrl-C, 1 when the reader of our output left."""

    def one_line(message: Warning | str, *_: object, **__: object) -> None:
        say(f"{program}: note: {message}")

    warnings.showwarning = one_line
    try:
        status = command()
        sys.stdout.flush()
        return status
    except InputError as error:
        say(f"{program}: error: {error}")
        return 2
    except KeyboardInterrupt:
        say(f"\n{program}: interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more can be said there
        return 1
