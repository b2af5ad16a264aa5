"""An argument parser whose errors are one line, and flags made from the fields of dataclasses. Knows no option."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, NoReturn, TypeVar, get_args, get_type_hints

from ..sampling.values import Either, Number, Several, Value, Whole

Chosen = TypeVar("Chosen")


class Parser(argparse.ArgumentParser):
    """An error is one line that names the option and its value; the exit status is 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")


class Flag(NamedTuple):
    """The flag for a field: `Annotated[type, Flag(...)]`. kind: what follows it; None: nothing, it is a switch.

    metavar: what follows it is called. also: other names. const: what it means where nothing follows it.
    """

    help: str
    kind: Callable[[str], Any] | Sequence[str] | None = None
    metavar: str | None = None
    also: Sequence[str] = ()
    const: str | None = None


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_flags(parser: argparse.ArgumentParser, title: str, kind: type) -> None:
    """A group of flags for a dataclass; one that is not given leaves no value."""
    group = parser.add_argument_group(title)
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        about: Flag = get_args(hints[each.name])[1]
        how: dict[str, Any] = {"action": "store_true"}
        if callable(about.kind):
            how = {"type": about.kind, "metavar": about.metavar}
        elif about.kind is not None:
            how = {"choices": tuple(about.kind)}
        if about.const is not None:
            how |= {"nargs": "?", "const": about.const}
        group.add_argument(flag_name(each.name), *about.also, default=argparse.SUPPRESS, help=about.help, **how)


def chosen_as(kind: type[Chosen], chosen: argparse.Namespace) -> Chosen:
    """The dataclass, from its flags that were given and its defaults for the others."""
    given = vars(chosen)
    return kind(**{each.name: given[each.name] for each in fields(kind) if each.name in given})  # type: ignore[arg-type]


def word(value: Value) -> Callable[[str], Any]:
    """What a flag's `kind` may be: such a value."""
    if isinstance(value, Either):
        value = replace(value, also="")  # objects are for Python only
    elif isinstance(value, Several):
        value = value.one  # the flag may be repeated

    def parse(text: str) -> Any:
        try:
            return value.parse(text)
        except (ValueError, TypeError, OverflowError):
            raise argparse.ArgumentTypeError(f"must be {value.wanted}, not {text!r}") from None

    return parse


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    return word(Whole(least, most))


def real(least: float, most: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """above: the least itself is excluded."""
    return word(Number(least, most, above))


def several_of(choices: Collection[str]) -> Callable[[str], list[str]]:
    """Names separated by commas."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"unknown {name!r}; known are {', '.join(choices)}")
        return list(dict.fromkeys(names))

    return parse
