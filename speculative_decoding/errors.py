"""The errors a user can cause. Each message is one line that names what was given, what is wrong and the way out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST_CHARACTERS = 1000


class InputError(ValueError):
    """Something the caller gave cannot be used: an option, a prompt, a folder, a file."""

    def __str__(self) -> str:
        return one_line(super().__str__())


class CheckpointError(InputError):
    """A checkpoint file or folder is missing, damaged or of an unknown kind; the message names it."""


def one_line(text: str) -> str:
    """Fit for a terminal, whatever names and contents of files are quoted in it: what is not printable is escaped, for
    control characters could rewrite what the terminal shows, and a long text loses its middle.
    """
    if len(text) > MOST_CHARACTERS:
        text = f"{text[: MOST_CHARACTERS // 2]} ... {text[-MOST_CHARACTERS // 2 :]}"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


@contextmanager
def writing(what: str, path: Path, way_out: str = "name another file") -> Iterator[None]:
    """What the system refuses while that file is written, in one line: mostly a disk that is full."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what} {path}: cannot be written ({error.strerror or error}); {way_out}") from error
