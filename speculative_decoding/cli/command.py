"""What a command of the console is, how its words are read, found and completed. Knows none in particular."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ..errors import InputError
from .state import State

Run = Callable[[State, str], str]
Value = Callable[[State], str]


class Wrong(InputError):
    """An argument that the command cannot take."""


@dataclass(frozen=True)
class Command:
    """usage: its name and what follows. run: (state, the text behind the name) -> what to say. value: how it is set.

    words: what its argument may begin with, for completion.
    """

    usage: str
    meaning: str
    run: Run
    value: Value = lambda state: ""
    words: Sequence[str] = field(default=())

    @property
    def name(self) -> str:
        return self.usage.split()[0]


def parsed(parse: Callable[[str], Any], text: str, what: str) -> Any:
    try:
        return parse(text)
    except argparse.ArgumentTypeError as error:
        raise Wrong(f"{what} {error}") from error


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(names)}, not {text!r}")
        return text

    return parse


def words(text: str, *counts: int) -> list[str]:
    """The arguments, if there are as many as there may be."""
    found = text.split()
    if len(found) not in counts:
        takes = "no argument" if counts == (0,) else "one argument" if counts == (1,) else "other arguments"
        raise Wrong(f"takes {takes}, not {len(found)}")
    return found


def on_off(is_on: bool) -> str:
    return "on" if is_on else "off"


def find(commands: Mapping[str, Command], line: str) -> tuple[Command, str]:
    """The command that a line names, and the text behind it. Raises `InputError` that names what is like it."""
    name, _, text = line.partition(" ")
    if name in commands:
        return commands[name], text
    like = get_close_matches(name, commands, n=1)
    hint = f"did you mean {like[0]}?" if like else "/help lists them"
    raise InputError(f"there is no command {name}; {hint} (a prompt that begins with / is written with two)")


def completions(commands: Mapping[str, Command], line: str) -> list[str]:
    """What the last word of a line may become: the name of a command, or what follows it."""
    if not line.startswith("/"):
        return []
    name, space, rest = line.partition(" ")
    if not space:
        return [each for each in commands if each.startswith(name)]
    known = commands[name].words if name in commands else ()
    return [word for word in known if word.startswith(rest)]
