"""What a command of the console is, how its words are read, found and completed. Knows none in particular."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ..errors import InputError
from ..sampling.values import Value
from .parser import word
from .state import State

Run = Callable[[State, str], str]
Now = Callable[[State], str]


class Wrong(InputError):
    """An argument that the command cannot take."""


@dataclass(frozen=True)
class Command:
    """usage: its name and what follows. run: (state, the text behind the name) -> what to say. now: how it is set.

    words: what its argument may begin with, for completion.
    """

    usage: str
    meaning: str
    run: Run
    now: Now = lambda state: ""
    words: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.usage.split()[0]


def by_name(*commands: Command) -> dict[str, Command]:
    return {command.name: command for command in commands}


def parsed(value: Value, text: str, what: str) -> Any:
    try:
        return word(value)(text)
    except argparse.ArgumentTypeError as error:
        raise Wrong(f"{what} {error}") from error


def words(text: str, *counts: int) -> list[str]:
    """The arguments, if there are as many as there may be."""
    found = text.split()
    if len(found) not in counts:
        takes = "no argument" if counts == (0,) else "one argument" if counts == (1,) else "other arguments"
        raise Wrong(f"takes {takes}, not {len(found)}")
    return found


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
