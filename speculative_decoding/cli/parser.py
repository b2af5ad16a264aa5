"""An argument parser whose errors are one line, and what a word of the command line may be. Knows no option."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any, NoReturn, TypeVar

from ..sampling.values import Either, Number, Value, Whole

Chosen = TypeVar("Chosen")


class Parser(argparse.ArgumentParser):
    """An error is one line that names the option and its value; the exit status is 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")


def chosen_as(kind: type[Chosen], chosen: argparse.Namespace) -> Chosen:
    """A dataclass whose fields are named as flags are. Its defaults stand for the flags that were not given."""
    given = vars(chosen)
    return kind(**{each.name: given[each.name] for each in fields(kind) if each.name in given})  # type: ignore[arg-type]


def word(value: Value) -> Callable[[str], Any]:
    """For `type=` of a flag."""
    value = replace(value, also="") if isinstance(value, Either) else value  # objects are for Python only

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
