"""Errors that a user can cause, and notes. Each message is one line with the subject, the problem and a way out."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .cache_folder import WAY_OUT

MAX_CHARACTERS = 1000
PACKAGE = os.path.dirname(__file__) + os.sep


class Note(UserWarning):
    """A note about a request or a file, which is used nevertheless."""


def note(message: str) -> None:
    """Warn, naming the line outside this package that made the call.

    Python shows a message once for each such line. The command line shows it each time.
    """
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, Note, stacklevel=level)


class InputError(ValueError):
    """An option, prompt, folder or file cannot be used.

    problem: What is wrong, with the value that was given.
    field: The option or parameter, by its name in Python. Each front end shows its own name for it.
    way_out: What to do instead.
    """

    def __init__(self, problem: str, field: str | None = None, way_out: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.field = field
        self.way_out = way_out

    def message(self, name: Callable[[str], str] = str) -> str:
        """Return the line to print. name: returns what a front end calls a field, such as its flag."""
        subject = "" if self.field is None else f"{name(self.field)}: "
        return one_line(f"{subject}{self.problem}{self.way_out and '; '}{self.way_out}")

    def __str__(self) -> str:
        return self.message()


class Float16Error(InputError):
    """A model whose numbers float16 cannot represent."""


class CheckpointError(InputError):
    """A checkpoint is missing, damaged or unsupported. The message names the file."""


def one_line(text: str) -> str:
    """Make a text safe for a terminal: escape unprintable characters, and shorten the middle of a long text.

    File names and contents may be quoted in it, and control characters could rewrite the screen.
    """
    if len(text) > MAX_CHARACTERS:
        text = f"{text[: MAX_CHARACTERS // 2]} ... {text[-MAX_CHARACTERS // 2 :]}"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


@contextmanager
def compiling() -> Iterator[None]:
    """Turn MLX's error about a kernel that cannot be compiled or loaded into an `InputError`."""
    try:
        yield
    except RuntimeError as error:
        if "[Compile::" not in str(error) and "C++ shared library" not in str(error):
            raise
        reason = str(error).splitlines()[-1]
        raise InputError(f"MLX cannot compile kernels ({reason}); free space, or {WAY_OUT}") from error


@contextmanager
def writing(what: str, path: Path, way_out: str = "name another file") -> Iterator[None]:
    """Turn an OSError while a file is written, usually a full disk, into an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what} {path}: cannot be written ({error.strerror or error}); {way_out}") from error
