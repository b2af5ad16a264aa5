"""An argument parser whose errors are one line, and what a value on the command line may be.

Knows no option, and nothing of the rest of the package.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An error is one line that names the option and its value; the exit status is 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists the options)\n")


def whole(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    limits = f"a whole number from {minimum} to {maximum}" if maximum is not None else f"a whole number >= {minimum}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise argparse.ArgumentTypeError(f"must be {limits}, not {text!r}")
        return value

    return parse


def real(minimum: float, maximum: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """above: the minimum itself is excluded."""
    limits = f"a number from {minimum:g} to {maximum:g}" if maximum < math.inf else f"a number >= {minimum:g}"
    if above:
        limits = f"a number above {minimum:g}" + (f", at most {maximum:g}" if maximum < math.inf else "")

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum or math.isinf(value) or (above and value == minimum):
            raise argparse.ArgumentTypeError(f"must be {limits}, not {text!r}")
        return value

    return parse


def several_of(choices: Collection[str]) -> Callable[[str], list[str]]:
    """Names separated by commas."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"unknown {name!r}; known are {', '.join(choices)}")
        return list(dict.fromkeys(names))

    return parse


def some_text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text
