"""The commands of the console: their names, what follows them, what they do."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from rich.table import Table
from rich.text import Text as Line

from ..errors import InputError
from ..sampling.options import ACCEPTANCE, SCHEDULES, abouts
from ..sampling.values import Text, Value
from .parser import word
from .state import State
from .summaries import accepted_bars, table
from .ways import DRAFTER, NGRAM, SPECULATIVE, TARGET

Run = Callable[[State, str], None]
Now = Callable[[State], str]

WAYS = {
    SPECULATIVE: "decode speculatively",
    TARGET: "decode with the target alone too, to compare",
    DRAFTER: "decode with the draft alone too",
    NGRAM: "decode with copies of the text as a draft too",
}
SETTINGS = {
    "/length N": "max_tokens",
    f"/gamma N|{'|'.join(SCHEDULES)}": "num_draft",
    "/delta X": "delta",
    f"/acceptance {'|'.join(ACCEPTANCE)}": "acceptance",
    "/seed N": "seed",
    "/output_prefix [TEXT]": "prefix",
}
PROCESSORS = {
    "greedy": (),
    "multinomial": ("temperature",),
    "topk": ("temperature", "top_k"),
    "nucleus": ("temperature", "top_p"),
    "topknucleus": ("temperature", "top_k", "top_p"),
}
OFF = {"temperature": 0.0, "top_k": 0, "top_p": 1.0}


class Quit(Exception):
    """The user wants to leave."""


@dataclass
class Command:
    """Decorates the function that does it, which is given the text behind the name.

    usage: its name and what follows: words as they are, and placeholders in capitals. now: how it is set.
    """

    usage: str
    meaning: str
    now: Now | None = None
    run: Run = field(init=False)

    def __call__(self, run: Run) -> None:
        self.run = run
        COMMANDS[self.name] = self

    @property
    def name(self) -> str:
        return self.usage.split()[0]

    @property
    def words(self) -> list[str]:
        """What its argument may begin with."""
        return re.findall(r"\b[a-z_]+\b", self.usage.removeprefix(self.name))

    def do(self, state: State, text: str) -> None:
        """Run it, and say how it is set then. Raises `InputError` with the usage for what it cannot do."""
        try:
            if self.usage == self.name and text.strip():
                raise InputError(f"takes no argument, not {text!r}")
            self.run(state, text)
        except InputError as error:
            raise InputError(f"{self.name}: {error}\nusage: {self.usage}") from error
        if self.now is not None:
            state.console.print(f"{self.name.removeprefix('/')}: {self.now(state)}")


COMMANDS: dict[str, Command] = {}  # in the order of /help


def find(name: str) -> Command:
    """Raises `InputError` that names what is like it."""
    if name in COMMANDS:
        return COMMANDS[name]
    like = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {like[0]}?" if like else "/help lists them"
    raise InputError(f"there is no command {name}; {hint} (a prompt that begins with / is written with two)")


def completions(line: str) -> list[str]:
    """What the last word of a line may become: the name of a command, or what follows it."""
    name, space, rest = line.partition(" ")
    if not space:
        return [each for each in COMMANDS if name and each.startswith(name)]
    return [word for word in COMMANDS[name].words if word.startswith(rest)] if name in COMMANDS else []


def parsed(value: Value, text: str, what: str) -> Any:
    try:
        return word(value)(text)
    except argparse.ArgumentTypeError as error:
        raise InputError(f"{what} {error}") from error


def on_off(is_on: bool) -> str:
    return "on" if is_on else "off"


@Command("/help [COMMAND]", "this list, or one of it")
def show_help(state: State, text: str) -> None:
    if text.strip():
        one = find(f"/{text.strip().removeprefix('/')}")
        now = f"\nnow: {one.now(state)}" if one.now else ""
        state.console.print(f"usage: {one.usage}\n{one.meaning}{now}")
        return
    listed = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for each in COMMANDS.values():
        now = f" (now {each.now(state)})" if each.now else ""
        listed.add_row(Line(each.usage), Line(each.meaning + now))
    state.console.print(listed)
    state.console.print("Any other line is a prompt; one that begins with / is written with two.")


def add_way(name: str, meaning: str) -> None:
    """A command that turns a way of decoding on or off."""

    @Command(f"/{name}", f"{meaning}: on or off", lambda state: on_off(name in state.ways))
    def toggle(state: State, text: str) -> None:
        state.toggle(name)


def add_setting(usage: str, option: str) -> None:
    """A command that sets an option of decoding; what it accepts and means is what `GenerationOptions` says."""

    def now(state: State) -> str:
        value = getattr(state.options, option)
        if option == "num_draft":
            return f"{value}; {state.session.length_of(state.options).describe()}"
        return repr(value) if option == "prefix" else str(value)

    @Command(usage, abouts()[option].help, now)
    def change(state: State, text: str) -> None:
        given = text if option == "prefix" else text.strip()
        state.change({option: parsed(abouts()[option].value, given, option)})


for name, meaning in WAYS.items():
    add_way(name, meaning)
for usage, option in SETTINGS.items():
    add_setting(usage, option)


def processor(state: State) -> str:
    """The name for what is set, and its arguments."""
    values = {name: getattr(state.options, name) for name, off in OFF.items() if getattr(state.options, name) != off}
    name = next(name for name, options in PROCESSORS.items() if options == tuple(values))
    return " ".join([name, *(f"{option} {value:g}" for option, value in values.items())])


@Command(
    "/processor greedy | multinomial T | topk T K | nucleus T P | topknucleus T K P",
    "how a token is chosen: temperature T, the K likeliest, the probability P they reach together",
    processor,
)
def set_processor(state: State, text: str) -> None:
    name, *given = text.split() or [""]
    wanted = PROCESSORS[parsed(Text(tuple(PROCESSORS)), name, "the processor")]
    if len(given) != len(wanted):
        raise InputError(f"{name} takes {' and '.join(wanted) or 'nothing'}, not {len(given)} values")
    values = {each: parsed(abouts()[each].value, text, each) for each, text in zip(wanted, given, strict=True)}
    if 0 in values.values():
        raise InputError(f"{name} takes numbers above 0")
    state.change(OFF | values)


@Command("/prefix [TEXT]", "put this in front of every prompt", lambda state: repr(state.prefix))
def set_prefix(state: State, text: str) -> None:
    state.prefix = text


@Command(
    "/debug [rounds]",
    "show accepted, rejected and corrected tokens; or a line per round",
    lambda state: state.runner.show_draft or "off",
)
def toggle_debug(state: State, text: str) -> None:
    wanted = parsed(Text(("text", "rounds")), text.strip() or "text", "the view")
    state.runner.show_draft = None if state.runner.show_draft == wanted else wanted


@Command("/model [TARGET [DRAFT]]", "use other models, or say which these are", lambda state: state.plan.describe())
def set_model(state: State, text: str) -> None:
    names = text.split()
    if len(names) > 2:
        raise InputError(f"takes a target and a draft, not {len(names)} names")
    if names:
        state.exchange(*names)


@Command(
    "/reset_in_between",
    "forget the texts of earlier prompts: on or off",
    lambda state: on_off(state.reset_in_between),
)
def toggle_reset(state: State, text: str) -> None:
    state.require_own_store()
    state.reset_in_between = not state.reset_in_between


@Command("/stats", "what was decoded so far, and how fast")
def show_stats(state: State, text: str) -> None:
    totals, console = state.runner.totals, state.console
    if not totals:
        console.print("nothing was decoded yet")
        return
    console.print(table(console, {name: (stats, "") for name, stats in totals.items()}, same_prompts=False))
    for name, stats in totals.items():
        if stats.drafted_tokens:
            bars = accepted_bars(stats.accepted_histogram, console.width)
            console.print("\n".join([f"{name}, by round:", *bars]))


@Command("/clear", "clear the screen")
def clear(state: State, text: str) -> None:
    state.console.clear()


@Command("/quit", "leave; Ctrl-D too")
def leave(state: State, text: str) -> None:
    raise Quit
