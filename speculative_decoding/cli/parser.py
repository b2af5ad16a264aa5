"""A parser whose errors are one line, and flags made from the fields of dataclasses such as `GenerationOptions`.

A field `name: Annotated[type, Value, "help"] = default` becomes --name; one that is not given leaves no value.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

from ..errors import InputError
from ..sampling.options import REMOVED, abouts, refusal
from ..sampling.values import Either, Number, Several, Switch, Text, Value
from ..version import __version__

FLAGS = {  # of fields with another name
    "num_draft_tokens": "num_draft",
    "src_lang": "source_language",
    "tgt_lang": "target_language",
    "decoder_prefix": "output_prefix",
    "eos_token_ids": "eos_token_id",
}
ALSO = {"max_tokens": "-m", "interactive": "-i", "model": "--model-name", "draft_model": "--draft-model-name"}
WITHOUT_VALUE = {"show_draft": "text"}  # what flags mean that need no value
METAVARS = {"model": "NAME", "draft_model": "NAME", "input": "FILE", "json": "FILE", "max_memory": "GB"}

Chosen = TypeVar("Chosen")


class Parser(argparse.ArgumentParser):
    """An error is one line that names the option and its value; the exit status is 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **options)
        self.add_argument("--version", action="version", version=f"speculative-decoding {__version__}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")


@dataclass(frozen=True)
class File(Value):
    """A path, of a file that may be there or not."""

    wanted: str = "the path of a file (- is none)"

    def accept(self, value: Any) -> Path:
        if value in ("", "-"):
            raise ValueError
        return Path(value)


def flag(name: str) -> str:
    """The flag for a field."""
    return "--" + FLAGS.get(name, name).replace("_", "-")


def require_writable(name: str, file: Path | None) -> None:
    """Before anything takes time. name: the field's."""
    if file is not None and (file.is_dir() or not file.resolve().parent.is_dir()):
        raise InputError(f"{flag(name)} {file}: cannot be written; name a file in a folder that exists")


def add_flags(
    parser: argparse.ArgumentParser,
    title: str,
    kind: type,
    *,
    without: Collection[str] = (),
    lists: Collection[str] = (),
) -> None:
    """A group of flags for a dataclass. without: fields that get none. lists: those that take several values here."""
    group = parser.add_argument_group(title)
    hints = get_type_hints(kind, include_extras=True)
    for name, usual in ((each.name, each.default) for each in fields(kind) if each.name not in without):
        value, about, *_ = get_args(hints[name])[1:]
        how: dict[str, Any] = {"type": word(value), "metavar": METAVARS.get(name) or metavar(value)}
        if isinstance(value, Switch):
            how = {"action": "store_true" if usual is False else argparse.BooleanOptionalAction}
        elif isinstance(value, Several):
            how["action"] = "append"
        elif name in lists:
            how["nargs"] = "+"
        elif name in WITHOUT_VALUE:
            how |= {"nargs": "?", "const": WITHOUT_VALUE[name]}
        names = [flag(name), *([ALSO[name]] if name in ALSO else [])]
        shown = "" if usual is False or usual in (None, "", ()) else f" (default: {usual})"
        group.add_argument(*names, dest=name, default=argparse.SUPPRESS, help=about + shown, **how)


def metavar(value: Value) -> str:
    """What --help calls such a value: words as they are, and placeholders in capitals."""
    if isinstance(value, Several):
        return metavar(value.one)
    if isinstance(value, Either):
        return "|".join(metavar(kind) for kind in value.kinds if not isinstance(kind, Several))
    if isinstance(value, Text):
        return "|".join(value.choices) or "TEXT"
    if isinstance(value, Switch):
        return "true|false"
    return "FILE" if isinstance(value, File) else "X" if isinstance(value, Number) else "N"


def chosen_as(kind: type[Chosen], chosen: argparse.Namespace) -> Chosen:
    """The dataclass, from its flags that were given and its defaults for the others."""
    given = vars(chosen)
    return kind(**{each.name: given[each.name] for each in fields(kind) if each.name in given})  # type: ignore[arg-type]


def given_options(chosen: argparse.Namespace) -> dict[str, Any]:
    """The options of decoding that were given, by their fields' names."""
    regular = {"drafter": "none"} if "regular_decode" in chosen else {}
    return {name: value for name, value in vars(chosen).items() if name in abouts()} | regular


@contextmanager
def in_words_of_flags() -> Iterator[None]:
    """An `InputError` from within names options as the command line does."""
    try:
        yield
    except InputError as error:
        raise InputError(with_flags(str(error))) from error


def with_flags(text: str) -> str:
    """The text, with options named as the command line does."""
    return re.sub(rf"\b({'|'.join(abouts())})\b", lambda name: flag(name[0]), text)


def word(value: Value) -> Callable[[str], Any]:
    """What makes such a value of a word of the command line: argparse's `type`."""
    if isinstance(value, Either):
        value = replace(value, also="")  # objects are for Python only
    elif isinstance(value, Several):
        value = value.one  # the flag may be repeated

    def parse(text: str) -> Any:
        try:
            return value.parse(text)
        except (ValueError, TypeError, OverflowError):
            raise argparse.ArgumentTypeError(refusal(value, text)) from None

    return parse


def refuse_removed_options(parser: argparse.ArgumentParser) -> None:
    """Flags of removed options, hidden from --help, that fail with the name of their replacement."""
    for name, instead in REMOVED.items():
        reason = f"was removed; use {with_flags(instead)}"
        parser.add_argument(flag(name), default=argparse.SUPPRESS, help=argparse.SUPPRESS, type=refusing(reason))


def refusing(reason: str) -> Callable[[str], Any]:
    """An argparse `type` that accepts no value."""

    def refuse(text: str) -> Any:
        raise argparse.ArgumentTypeError(reason)

    return refuse


def several_of(choices: Collection[str]) -> Callable[[str], list[str]]:
    """Names separated by commas."""
    parse = word(Text(tuple(choices)))
    return lambda text: list(dict.fromkeys(map(parse, text.split(","))))
