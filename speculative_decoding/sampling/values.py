"""What a value may be: one test for Python, for JSON and for the command line. Knows no option."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any


class Value(ABC):
    """`wanted`: the values that are accepted, in words that follow "must be"."""

    @property
    @abstractmethod
    def wanted(self) -> str: ...

    @abstractmethod
    def accept(self, value: Any) -> Any:
        """The value in Python's own type. Raises ValueError or TypeError for what is not wanted."""

    def parse(self, text: str) -> Any:
        """From a word of the command line; raises likewise."""
        return self.accept(text)


@dataclass(frozen=True)
class Whole(Value):
    """A whole number from `least` to `most`."""

    least: int
    most: int | None = None

    @property
    def wanted(self) -> str:
        return (
            f"a whole number >= {self.least}" if self.most is None else f"a whole number, {self.least} to {self.most}"
        )

    def accept(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError
        number = int(value)
        if number < self.least or (self.most is not None and number > self.most):
            raise ValueError
        return number

    def parse(self, text: str) -> int:
        return self.accept(int(text))


@dataclass(frozen=True)
class Number(Value):
    """A finite number from `least` to `most`. above: `least` itself is excluded. or_zero: 0 is accepted too."""

    least: float
    most: float = math.inf
    above: bool = False
    or_zero: bool = False

    @property
    def wanted(self) -> str:
        if self.above:
            return f"a number above {self.least:g}" + ("" if math.isinf(self.most) else f", at most {self.most:g}")
        upwards = f" >= {self.least:g}" if math.isinf(self.most) else f", {self.least:g} to {self.most:g}"
        return ("0 or " if self.or_zero else "") + f"a number{upwards}"

    def accept(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        try:
            number = float(value)
        except OverflowError:  # an integer beyond all floats
            raise ValueError from None
        if self.or_zero and number == 0:
            return 0.0
        if not self.least <= number <= self.most or math.isinf(number) or (self.above and number == self.least):
            raise ValueError
        return number

    def parse(self, text: str) -> float:
        return self.accept(float(text))


@dataclass(frozen=True)
class Text(Value):
    """Text, or one of `choices` if there are any. may_be_empty: whether "" is text."""

    choices: Sequence[str] = ()
    may_be_empty: bool = False

    @property
    def wanted(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return "text" if self.may_be_empty else "text that is not empty"

    def accept(self, value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError
        if not (value or self.may_be_empty) or (self.choices and value not in self.choices):
            raise ValueError
        return value


@dataclass(frozen=True)
class Switch(Value):
    """True or False; on the command line a flag, or one of several values a word."""

    wanted: str = "True or False"

    def accept(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError
        return value

    def parse(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"


@dataclass(frozen=True)
class Several(Value):
    """A list of `one`; on the command line a flag that may be repeated."""

    one: Value

    @property
    def wanted(self) -> str:
        return f"a list, each {self.one.wanted}"

    def accept(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise TypeError
        return tuple(map(self.one.accept, value))

    def parse(self, text: str) -> Any:
        """One of them."""
        return self.one.parse(text)


@dataclass(frozen=True)
class Either(Value):
    """Whatever one of `kinds` accepts. also: a class whose objects are accepted as they are, from Python only."""

    kinds: Sequence[Value]
    also: str = ""

    @property
    def wanted(self) -> str:
        return " or ".join(kind.wanted for kind in self.kinds) + (f", or {self.also}" if self.also else "")

    def accept(self, value: Any) -> Any:
        for kind in self.kinds:
            with suppress(ValueError, TypeError):
                return kind.accept(value)
        if self.also and not isinstance(value, str | bytes | bool | int | float | list | tuple | dict | None):
            return value
        raise ValueError

    def parse(self, text: str) -> Any:
        for kind in self.kinds:
            with suppress(ValueError, TypeError):
                return kind.parse(text)
        raise ValueError
