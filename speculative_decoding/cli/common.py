"""Helpers shared by all commands: one-line errors, exit statuses, and file input and output."""

from __future__ import annotations

import argparse
import codecs
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any

from ..checkpoints.files import open_text
from ..checkpoints.text import decode_text
from ..errors import InputError, Name, Note, one_line, shown, writing
from ..models.backend import computing
from .parser import Parser, flag

PROMPTS = Path(__file__).resolve().parents[2] / "data"  # the bundled prompt files, which exist only in the repository


def start_alone(
    parser: Parser, argv: Sequence[str] | None, command: Callable[[argparse.Namespace], int], when_interrupted: str = ""
) -> int:
    """Parse the arguments, run a command in this process only, and return its exit status."""
    chosen = parser.parse_args(argv)
    return run(parser.prog, lambda: command(chosen), when_interrupted, parser.name_of)


def launched_rank() -> int | None:
    """Return this process's rank if `mlx.launch` or MPI started it, otherwise None."""
    rank = os.environ.get("MLX_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", ""))
    return int(rank) if rank.isdecimal() else None


def require_one_process() -> None:
    """Raise `InputError` if `mlx.launch` started several processes, because all of them would do the same work."""
    if launched_rank() is not None:
        raise InputError("this command runs in one process; start it without mlx.launch")


def run(program: str, command: Callable[[], int], when_interrupted: str = "", name: Callable[[str], str] = flag) -> int:
    """Run a command and return its exit status: 2 for bad input, 130 for Ctrl-C, 1 for a closed pipe.

    Args:
        when_interrupted: Text added to the line that reports Ctrl-C.
        name: Returns the name of an option on the command line; see `Parser.name_of`.
    """

    def show(message: Warning | str, *_: object, **__: object) -> None:
        say(f"{program}: note: {shown(message.text if isinstance(message, Note) else message, name)}")

    warnings.showwarning = show
    warnings.simplefilter("always", Note, append=True)  # repeat notes for later requests, unless -W disables them
    try:
        require_streams()
        with one_interrupt(), computing():
            status = command()
        with printing():
            sys.stdout.flush()
        return status
    except InputError as error:
        say(f"{program}: error: {error.message(name)}")
        return 2
    except KeyboardInterrupt:
        if not launched_rank():  # the other ranks also receive Ctrl-C; one message is enough
            say(f"\n{program}: interrupted{when_interrupted}")
        return 130
    except BrokenPipeError:
        drop_output()
        return 1


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt only for the first Ctrl-C. After that, Ctrl-C ends the process without a traceback."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise KeyboardInterrupt

    if before is not signal.SIG_IGN:  # SIGINT is ignored under nohup, and on ranks that rank 0 terminates
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, before)


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed. A second Ctrl-C raises KeyboardInterrupt."""
    is_pressed = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_pressed
        if is_pressed:
            raise KeyboardInterrupt
        is_pressed = True

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: is_pressed
    finally:
        signal.signal(signal.SIGINT, before)


def require_streams() -> None:
    """Replace closed standard streams with /dev/null, so that no other file reuses their descriptors.

    Raises `InputError` if standard output is closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # `open` takes the lowest free descriptor
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        raise InputError("standard output is closed; redirect it to a file or to /dev/null")
    if isinstance(sys.stdout, TextIOWrapper):
        codecs.register_error("escape_with_note", escape_with_note)
        sys.stdout.reconfigure(errors="escape_with_note")


def escape_with_note(error: UnicodeError) -> tuple[str | bytes, int]:
    """Error handler for standard output: escape characters that are not in its encoding, and print a note."""
    say_that_characters_are_escaped(sys.stdout.encoding)
    return codecs.backslashreplace_errors(error)


@cache  # so that the note is printed once
def say_that_characters_are_escaped(encoding: str) -> None:
    say(
        f"note: standard output is {encoding}; characters outside this encoding are written as escapes such as \\xfc "
        "(set PYTHONIOENCODING=utf-8 to write them)"
    )


@contextmanager
def printing() -> Iterator[None]:
    """Convert an OSError raised while printing, usually because the disk is full, to an `InputError`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise InputError(f"standard output: {error.strerror}; redirect it to another disk") from error


def write_to_stdout(content: bytes) -> None:
    with printing():
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


def drop_output() -> None:
    """Discard buffered output, which Python would otherwise try to print again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print to standard error, with control characters escaped."""
    print("\n".join(map(one_line, text.split("\n"))), file=sys.stderr, flush=True)


def read_prompts(path: Path, what: str = "prompts") -> list[str]:
    """Read a file with one prompt per line, and skip blank lines. Raises `InputError`."""
    return [line for line in read_text(path, what).split("\n") if line.strip()]  # other line breaks belong to the text


def read_text(path: Path, what: str) -> str:
    """Read a text file. Raises `InputError`. what: see `writing`."""
    field, name = (what, str(path)) if isinstance(what, Name) else (None, f"{what} {path}")
    try:
        with open_text(path) as file:
            return decode_text(file.read()).replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise InputError(f"{name}: not readable ({error.strerror})", field, "name another file") from error
    except InputError as error:
        raise InputError(f"{name}: {error.problem}", field, error.way_out) from error


def write_stats(path: Path, content: Mapping[str, Any]) -> None:
    with writing(Name("stats_json"), path):
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
