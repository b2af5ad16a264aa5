"""Errors that a user can cause, and notes. Each message is one line with the subject, the problem and a way out."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

MAX_CHARACTERS = 1000
MAX_MISSPELT = 80  # characters of a name
PACKAGE = os.path.dirname(__file__) + os.sep


class Name(str):
    """The Python name of an option or parameter, as a part of `Words`. Each front end shows its own name instead."""


Words = str | tuple[str, ...]  # a text, or its parts in order; parts of type `Name` are names of options


def words(text: Words) -> tuple[str, ...]:
    """Return the parts of a text."""
    return text if isinstance(text, tuple) else (text,)


def written(text: Words, name: Callable[[str], str] = str) -> str:
    """Join the parts of a text. name: returns what a front end calls an option, such as its flag."""
    return "".join(name(str(part)) if isinstance(part, Name) else part for part in words(text))


class Note(UserWarning):
    """A note about a request or file that is still used. text: contains a `Name` for each option."""

    def __init__(self, text: Words) -> None:
        super().__init__(written(text))
        self.text = text


def note(text: Words) -> None:
    """Issue a warning that names the line outside this package that made the call.

    Python shows a message once for each such line. The command line shows it each time.
    """
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(Note(text), stacklevel=level)


class InputError(ValueError):
    """An option, prompt, folder or file cannot be used.

    No code parses its text. Options that it mentions are marked with `Name`, and each front end shows its own name:
    `InputError(("has no effect without ", Name("word_timestamps")), "clip_timestamps", "turn them on")`.

    problem: What is wrong, with the value that was given.
    field: The Python name of the option or parameter that the error is about.
    way_out: What to do instead.
    """

    def __init__(self, problem: Words, field: str | None = None, way_out: Words = "") -> None:
        super().__init__(problem, field, way_out)
        self.problem = problem
        self.field = field
        self.way_out = way_out

    def message(self, name: Callable[[str], str] = str) -> str:
        """Return the line to print. name: see `written`."""
        subject = "" if self.field is None else f"{name(self.field)}: "
        way_out = written(self.way_out, name)
        return one_line(f"{subject}{written(self.problem, name)}{way_out and '; '}{way_out}")

    def at(self, place: str) -> InputError:
        """Return this error with a place in the input, such as a line of a file, before its message."""
        subject = () if self.field is None else (Name(self.field), ": ")
        return InputError((f"{place}: ", *subject, *words(self.problem)), way_out=self.way_out)

    def __str__(self) -> str:
        return self.message()


class UnknownOption(InputError):
    """There is no option with the name in `field`."""


class Float16Error(InputError):
    """A model has values that float16 cannot represent."""


class CheckpointError(InputError):
    """A checkpoint is missing, damaged or unsupported. The message names the file."""


def one_line(text: str) -> str:
    """Make a text safe for a terminal: escape unprintable characters, and shorten the middle of a long text.

    The text may quote file names and contents, whose control characters could rewrite the screen.
    """
    if len(text) > MAX_CHARACTERS:
        text = f"{text[: MAX_CHARACTERS // 2]} ... {text[-MAX_CHARACTERS // 2 :]}"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def similar_names(name: str, known: Collection[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known names that `name` may misspell, best first.

    A long text misspells none: comparing it would take seconds. cutoff: the lowest similarity, from 0 to 1.
    """
    return get_close_matches(name, known, count, cutoff) if len(name) <= MAX_MISSPELT else []


@contextmanager
def writing(what: str, path: Path, way_out: Words = "name another file") -> Iterator[None]:
    """Turn an OSError while a file is written, usually a full disk, into an `InputError`.

    what: The option that names the file, as a `Name`; or a description of the file.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        if isinstance(what, Name):
            raise InputError(f"{path} cannot be written ({reason})", what, way_out) from error
        raise InputError(f"{what} {path}: cannot be written ({reason})", way_out=way_out) from error
