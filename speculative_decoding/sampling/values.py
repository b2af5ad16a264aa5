"""Value types, which apply the same checks in Python, in JSON and on the command line, and fields of these types.

A field of a dataclass of options or flags is `name: Annotated[type, Value, "help", *marks] = default`. The marks are a
`Flag`, and strings such as `PYTHON_ONLY` that specify where the option exists and which other options it depends on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache, partial
from numbers import Integral, Real
from typing import Any, NamedTuple, get_args, get_type_hints

from ..errors import Message

# Marks for fields of any dataclass. sampling/options.py defines further marks for decoding options.
PYTHON_ONLY = "Python only"  # has no flag
BASIC = "basic"  # one of the few flags that --help lists
FOR_ALL_ROWS = "for all rows"  # the same for every row of a batch


# The annotations of a class by field, with their `Value`. Cached, because resolving them is slow.
annotations_of = cache(partial(get_type_hints, include_extras=True))


class Flag(NamedTuple):
    """The ways in which a field's flag differs from the flag derived from the field's name and `Value`.

    name: The flag without dashes.
    short: A short form, with its dash.
    metavar: The placeholder in usage messages.
    bare: The value of the flag if it has no argument.
    parameter: The name of the parameter in Python, if it differs from the field's.
    """

    name: str = ""
    short: str = ""
    metavar: str = ""
    bare: str | None = None
    parameter: str = ""


class Value(ABC):
    """The type of value that an option, flag or field accepts.

    expected: A description of the type, which follows "must be" in error messages.
    metavar: The placeholder in usage messages.
    """

    @property
    @abstractmethod
    def expected(self) -> str: ...

    @property
    @abstractmethod
    def metavar(self) -> str: ...

    @abstractmethod
    def accept(self, value: Any) -> Any:
        """Return the value as a plain Python object, or raise ValueError or TypeError."""

    def parse(self, text: str) -> Any:
        """Convert a command-line argument, or raise ValueError or TypeError."""
        return self.accept(text)


@dataclass(frozen=True, eq=False)
class Int(Value):
    """An integer from `minimum` to `maximum`."""

    minimum: int
    maximum: int | None = None

    metavar = "N"

    @property
    def expected(self) -> str:
        if self.maximum is None:
            return f"a whole number >= {self.minimum}"
        return f"a whole number, {self.minimum} to {self.maximum}"

    def accept(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError
        number = int(value)
        if number < self.minimum or (self.maximum is not None and number > self.maximum):
            raise ValueError
        return number

    def parse(self, text: str) -> int:
        return self.accept(int(text))


@dataclass(frozen=True, eq=False)
class Number(Value):
    """A finite number from `minimum` to `maximum`.

    exclusive: Whether `minimum` itself is rejected.
    or_zero: Whether 0 is also accepted.
    """

    minimum: float
    maximum: float = math.inf
    exclusive: bool = False
    or_zero: bool = False

    metavar = "X"

    @property
    def expected(self) -> str:
        has_maximum = not math.isinf(self.maximum)
        if self.exclusive:
            return f"a number above {self.minimum:g}" + (f", at most {self.maximum:g}" if has_maximum else "")
        range_ = f"a number, {self.minimum:g} to {self.maximum:g}" if has_maximum else f"a number >= {self.minimum:g}"
        return f"0 or {range_}" if self.or_zero else range_

    def accept(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        try:
            number = float(value)
        except OverflowError:  # an integer beyond the range of floats
            raise ValueError from None
        if self.or_zero and number == 0:
            return 0.0
        if not self.minimum <= number <= self.maximum or math.isinf(number):
            raise ValueError
        if self.exclusive and number == self.minimum:
            raise ValueError
        return number

    def parse(self, text: str) -> float:
        return self.accept(float(text))


@dataclass(frozen=True, eq=False)
class Text(Value):
    """Text, or one of `choices` if there are any."""

    choices: Sequence[str] = ()
    may_be_empty: bool = False

    @property
    def expected(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        return "text" if self.may_be_empty else "text that is not empty"

    @property
    def metavar(self) -> str:
        return "|".join(self.choices) or "TEXT"

    def accept(self, value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError
        if self.choices and value not in self.choices:
            raise ValueError
        if not value and not self.may_be_empty:
            raise ValueError
        return value


@dataclass(frozen=True, eq=False)
class Bool(Value):
    """True or False. On the command line, a flag without a value."""

    expected = "true or false"
    metavar = "true|false"

    def accept(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError
        return value

    def parse(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"


@dataclass(frozen=True, eq=False)
class ListOf(Value):
    """A list, kept as a tuple. On the command line, a flag that may be repeated; `parse` converts one item."""

    item: Value

    @property
    def expected(self) -> str:
        return f"a list, each item {self.item.expected}"

    @property
    def metavar(self) -> str:
        return self.item.metavar

    def accept(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise TypeError
        return tuple(map(self.item.accept, value))

    def parse(self, text: str) -> Any:
        return self.item.parse(text)


@dataclass(frozen=True, eq=False)
class OneOrMore(ListOf):
    """An item or a list of items, kept as a tuple."""

    @property
    def expected(self) -> str:
        return f"{self.item.expected}, or a list of such"

    def accept(self, value: Any) -> tuple[Any, ...]:
        try:
            return (self.item.accept(value),)
        except (ValueError, TypeError):
            return super().accept(value)


@dataclass(frozen=True, eq=False)
class Union(Value):
    """A value of one of several types, converted by the first type that accepts it.

    or_object: Whether Python callers may also pass other objects, which are accepted unchanged. Error messages do not
        mention them, because JSON and the command line share the messages.
    """

    types: Sequence[Value]
    or_object: bool = False

    @property
    def expected(self) -> str:
        return " or ".join(each.expected for each in self.types)

    @property
    def metavar(self) -> str:
        return "|".join(each.metavar for each in self.types if not isinstance(each, ListOf))

    def accept(self, value: Any) -> Any:
        for each in self.types:
            with suppress(ValueError, TypeError):
                return each.accept(value)
        if self.or_object and not isinstance(value, str | bytes | bool | int | float | list | tuple | dict | None):
            return value
        raise ValueError

    def parse(self, text: str) -> Any:
        for each in self.types:
            with suppress(ValueError, TypeError):
                return each.parse(text)
        raise ValueError


@dataclass(frozen=True, eq=False)
class OrNone(Value):
    """A value of a type, or None; "none" on the command line."""

    type: Value

    @property
    def expected(self) -> str:
        return f"{self.type.expected}, or none"

    @property
    def metavar(self) -> str:
        return self.type.metavar

    def accept(self, value: Any) -> Any:
        return None if value is None else self.type.accept(value)

    def parse(self, text: str) -> Any:
        return None if text == "none" else self.type.parse(text)


class OptionSpec(NamedTuple):
    """A field of a dataclass of options or flags: its Python type, accepted values, help, default and marks."""

    annotation: Any
    type: Value
    help: str | Message
    default: Any
    flag: Flag
    marks: tuple[str, ...]

    @property
    def per_row(self) -> bool:
        """Whether the option may differ between the rows of a batch."""
        return FOR_ALL_ROWS not in self.marks


@cache
def specs_of(cls: type) -> Mapping[str, OptionSpec]:
    """Return the fields of a dataclass by name, in declaration order."""
    specs = {}
    for each in fields(cls):
        annotation, type_, help_, *marks = get_args(annotations_of(cls)[each.name])
        flag = next((mark for mark in marks if isinstance(mark, Flag)), Flag())
        others = tuple(mark for mark in marks if isinstance(mark, str))
        specs[each.name] = OptionSpec(annotation, type_, help_, each.default, flag, others)
    return specs
