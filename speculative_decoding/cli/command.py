"""What a command of the console is, and how a line's is found and completed. Knows none in particular."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ..errors import InputError
from .state import State


@dataclass(frozen=True)
class Command:
    """usage: its name and what follows. run: (state, the text behind the name) -> what to say. now: how it is set.

    words: what its argument may begin with, for completion.
    """

    usage: str
    meaning: str
    run: Callable[[State, str], str]
    now: Callable[[State], str] = lambda state: ""
    words: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.usage.split()[0]

    def answer(self, state: State, text: str) -> str:
        """Run it. Raises `InputError` with the usage for what it cannot do."""
        try:
            if self.usage == self.name and text.strip():
                raise InputError(f"takes no argument, not {text!r}")
            return self.run(state, text)
        except InputError as error:
            raise InputError(f"{self.name}: {error}\nusage: {self.usage}") from error


def find(commands: Mapping[str, Command], name: str) -> Command:
    """Raises `InputError` that names what is like it."""
    if name in commands:
        return commands[name]
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
