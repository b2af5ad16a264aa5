"""Errors that users can cause, and notes. A message is one line with the subject, the problem and a way out."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

MAX_CHARACTERS = 1000
MAX_MISSPELT = 80  # maximum length of a name
PLACEHOLDER = re.compile(r"\{(\w+)\}")
PACKAGE = os.path.dirname(__file__) + os.sep


class Message:
    """A message that mentions options, for which each front end shows its own names: `Message("requires {quantize}")`.

    A placeholder without a value is the Python name of an option. Values are inserted verbatim, including braces:
    `Message("must be <= {max_tokens} ({limit})", limit=512)`. A value may be a `Message` or a `Name`.
    """

    def __init__(self, template: str, /, **values: object) -> None:
        self.template = template
        self.values = values

    def __str__(self) -> str:
        return shown(self)


class Name(str):
    """The Python name of an option that is known only at run time, as a value of a `Message`."""


def shown(value: object, name: Callable[[str], str] = str) -> str:
    """Convert a value to a string for display. name: maps an option's Python name to the name used by a front end."""
    if isinstance(value, Message):
        values = value.values
        return PLACEHOLDER.sub(lambda found: shown(values.get(found[1], Name(found[1])), name), value.template)
    return name(str(value)) if isinstance(value, Name) else str(value)


def joined(separator: str, texts: Iterable[str | Message]) -> Message:
    """Join strings or messages into one message, with a separator between them."""
    values = {f"text{i}": text for i, text in enumerate(texts)}
    return Message(separator.join(f"{{{key}}}" for key in values), **values)


class Note(UserWarning):
    """A note about a request or file that is used nonetheless."""

    def __init__(self, text: str | Message) -> None:
        super().__init__(str(text))
        self.text = text


def note(text: str | Message) -> None:
    """Issue a warning that names the line outside this package that made the call.

    Python shows a message only once for each such line. The command line shows it every time.
    """
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(Note(text), stacklevel=level)


class InputError(ValueError):
    """An option, prompt, folder or file cannot be used.

    No code parses the message text. Each front end shows its own names for the options that a `Message` mentions:
    `InputError(Message("has no effect without {word_timestamps}"), "clip_timestamps", "turn them on")`.

    problem: What is wrong, with the value that was given.
    field: The Python name of the option or parameter to which the error refers.
    way_out: What to do instead.
    """

    def __init__(self, problem: str | Message, field: str | None = None, way_out: str | Message = "") -> None:
        super().__init__(problem, field, way_out)
        self.problem = problem
        self.field = field
        self.way_out = way_out

    def message(self, name: Callable[[str], str] = str) -> str:
        """Return the error message as one line. name: see `shown`."""
        subject = "" if self.field is None else f"{name(self.field)}: "
        way_out = shown(self.way_out, name)
        return one_line(f"{subject}{shown(self.problem, name)}{way_out and '; '}{way_out}")

    def at(self, place: str) -> InputError:
        """Return this error with a place in the input, such as a line of a file, prepended to its message."""
        parts = [place, self.problem] if self.field is None else [place, Name(self.field), self.problem]
        return InputError(joined(": ", parts), way_out=self.way_out)

    def __str__(self) -> str:
        return self.message()


class UnknownOption(InputError):
    """No option has the name in `field`."""


class Float16Error(InputError):
    """A model contains values that float16 cannot represent."""


class CheckpointError(InputError):
    """A checkpoint is missing, damaged or unsupported. The message names the file."""


def one_line(text: str) -> str:
    """Make text safe for a terminal: escape unprintable characters, and cut out the middle of a long string.

    The text may quote file names and contents, whose control characters could rewrite the screen.
    """
    if len(text) > MAX_CHARACTERS:
        text = f"{text[: MAX_CHARACTERS // 2]} ... {text[-MAX_CHARACTERS // 2 :]}"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def similar_names(
    name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6, key: Callable[[str], str] = str
) -> list[str]:
    """Return the known names that `name` may misspell, best first; none if it is long, to avoid a slow comparison.

    cutoff: the minimum similarity, from 0 to 1.
    key: returns the part of a name that is compared. Of several names with the same part, only the first is used.
    """
    if len(key(name)) > MAX_MISSPELT:
        return []
    names = {key(each): each for each in reversed([*known])}
    return [names[each] for each in get_close_matches(key(name), names, count, cutoff)]


@contextmanager
def writing(what: str, path: Path, way_out: str | Message = "name another file") -> Iterator[None]:
    """Convert an OSError that occurs while a file is written, usually because the disk is full, to an `InputError`.

    what: The option that names the file, as a `Name`, or a description of the file.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        if isinstance(what, Name):
            raise InputError(f"{path} cannot be written ({reason})", what, way_out) from error
        raise InputError(f"{what} {path}: cannot be written ({reason})", way_out=way_out) from error
