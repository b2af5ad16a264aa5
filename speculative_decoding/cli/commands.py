"""What the console has open and how it is set, and its commands: their names, what follows them, what they do.

A command that is named like a flag of main.py means what that does.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text as Line

from ..errors import InputError
from ..loading.load import BUNDLED, MODELS, SELF_DRAFT
from ..loading.pair import Pair
from ..sampling import GenerationOptions
from ..sampling.options import abouts, default
from ..sampling.values import Several, Switch, Text, Value
from ..session import Session
from .compare import Runner, table, ways
from .drafting import Plan, make_plan
from .flags import FOR_PYTHON
from .models import ModelNames
from .parser import flag, metavar, word
from .views import make_console

WHEN_IT_STARTS = ("max_ngram_size",)  # the drafter of copies is made with them
FOR_FILES = ("num_return_sequences",)  # the console shows one text as it comes


class Quit(Exception):
    """The user wants to leave."""


@dataclass
class State:
    """plan: of the models that are open. prefix: in front of every prompt. compare: decode in all ways."""

    plan: Plan
    runner: Runner = field(default_factory=lambda: Runner(make_console()))
    prefix: str = ""
    compare: bool = False
    session: Session = field(init=False)
    _opened: ExitStack = field(init=False, default_factory=ExitStack)

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def console(self) -> Console:
        return self.runner.console

    @property
    def options(self) -> GenerationOptions:
        return self.session.options

    @property
    def ways(self) -> list[str]:
        """Those that prompts are decoded in; the first gives the answer."""
        return ways(self.session)[: None if self.compare else 1]

    def change(self, changes: Mapping[str, Any]) -> None:
        """Only to what fits together."""
        self.session.options_with(changes)
        options = replace(self.options, **changes)
        replace(self.session, options=options)  # raises where the models do not fit
        self.session.options = options

    def open(self, plan: Plan, pair: Pair | None = None) -> None:
        """Load the models of the plan, the draft too where none is used yet. pair: them, if they were found already."""
        self.session = self._opened.enter_context(plan.session(pair or plan.open(use_draft=True)))
        self.plan = plan

    def exchange(self, model: str, draft_model: str | None) -> None:
        """Open other models, with the options as they are. If that fails the old ones come back."""
        if self.plan.folders.processes is not None:
            raise InputError("several processes share the model; start again with the other one")
        folders = ModelNames(model, draft_model, self.plan.folders.dtype).find()
        given = {name: value for name in abouts() if (value := getattr(self.options, name)) != default(name)}
        plan, before = make_plan(folders, given, self.plan.flags), replace(self.plan, options=self.options)
        pair = plan.open(use_draft=True)
        self._opened.close()
        del self.session  # so that two targets are never in memory
        try:
            self.open(plan, pair)
        except BaseException:
            self.open(before)
            raise

    def recover(self) -> None:
        """After an interruption at any moment: what learns from request to request may be half-way through it."""
        self.session = replace(self.session)


@dataclass
class Command:
    """Decorates the function that does it, which is given the state and the text behind the name.

    usage: its name and what follows: words as they are, and placeholders in capitals. now: how it is set.
    words: what an argument may be; by default the words of the usage.
    """

    usage: str
    meaning: str
    now: Callable[[State], str] | None = None
    words: Callable[[], Iterable[str]] | None = None
    run: Callable[[State, str], None] = field(init=False)

    def __call__(self, run: Callable[[State, str], None]) -> None:
        self.run = run
        COMMANDS[self.name] = self

    @property
    def name(self) -> str:
        return self.usage.split()[0]

    def completions(self, start: str) -> list[str]:
        words = re.findall(r"\b[a-z_]+\b", self.usage.removeprefix(self.name)) if self.words is None else self.words()
        return [word for word in words if word.startswith(start)]

    def do(self, state: State, text: str) -> None:
        """Run it, and say how it is set then. Raises `InputError` with the usage for what it cannot do."""
        try:
            if self.usage == self.name and text.strip():
                raise InputError(f"takes no argument, not {text!r}")
            self.run(state, text)
        except InputError as error:
            raise InputError(f"{self.name}: {error}; usage: {self.usage}") from error
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
    return COMMANDS[name].completions(rest.rpartition(" ")[2]) if name in COMMANDS else []


def parsed(value: Value, text: str, what: str) -> Any:
    try:
        return word(value)(text)
    except argparse.ArgumentTypeError as error:
        raise InputError(f"{what} {error}") from error


def on_off(is_on: bool) -> str:
    return "on" if is_on else "off"


@Command("/help [COMMAND]", "this list, or one of it", words=lambda: COMMANDS)
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


@Command("/prefix [TEXT]", "put this in front of every prompt", lambda state: repr(state.prefix))
def set_prefix(state: State, text: str) -> None:
    state.prefix = text


def add_setting(option: str) -> None:
    """A command that sets an option of decoding; what it accepts and means is what `GenerationOptions` says."""
    value, meaning, _ = abouts()[option]
    kind, usage = metavar(value), f"/{flag(option).removeprefix('--')}"
    if not isinstance(value, Switch):
        usage += f" [{kind}]" if default(option) in ("", ()) else f" {kind}"

    def now(state: State) -> str:
        options = state.session.options_with({})  # with the drafter that is usual where nobody chose one
        found = getattr(options, option)
        if option == "num_draft_tokens":
            return f"{found}; {state.session.planner.length(options).describe()}"
        return on_off(found) if isinstance(found, bool) else repr(found) if kind == "TEXT" else str(found)

    @Command(usage, meaning, now)
    def change(state: State, text: str) -> None:
        given = text if kind == "TEXT" else text.strip()
        if isinstance(value, Switch):
            state.change({option: not getattr(state.options, option)})
        elif isinstance(value, Several):
            state.change({option: [parsed(value, given, option)] if given else ()})
        else:
            state.change({option: parsed(value, given, option)})


for option in abouts():
    if option not in (*FOR_PYTHON, *WHEN_IT_STARTS, *FOR_FILES):
        add_setting(option)


@Command("/regular-decode", "the target alone: on or off", lambda state: on_off(state.options.drafter == "none"))
def toggle_regular(state: State, text: str) -> None:
    state.change({"drafter": None if state.options.drafter == "none" else "none"})


@Command("/compare", "with the target and the draft alone too: on or off", lambda state: on_off(state.compare))
def toggle_compare(state: State, text: str) -> None:
    if len(ways(state.session)) == 1:
        raise InputError("nothing to compare without a draft; turn /regular-decode off, or give a /draft-model")
    state.compare = not state.compare


@Command(
    "/show-draft [text|rounds]",
    "show accepted, rejected and corrected tokens; or a line per round",
    lambda state: state.runner.show_draft or "off",
)
def toggle_draft(state: State, text: str) -> None:
    wanted = parsed(Text(("text", "rounds")), text.strip() or "text", "the view")
    state.runner.show_draft = None if state.runner.show_draft == wanted else wanted


def model_names() -> list[str]:
    """The folders under models/."""
    return sorted({path.name for models in (MODELS, BUNDLED) for path in models.glob("*/") if path.is_dir()})


def describe(state: State) -> str:
    return replace(state.plan, options=state.options).describe()


@Command("/model [TARGET [DRAFT]]", "use other models, or say which these are", describe, model_names)
def set_model(state: State, text: str) -> None:
    target, *draft = text.split() or [""]
    if len(draft) > 1:
        raise InputError(f"takes a target and a draft, not {1 + len(draft)} names")
    if target:
        state.exchange(target, draft[0] if draft else None)


@Command("/draft-model NAME", "use another draft with this target", words=lambda: [*model_names(), SELF_DRAFT])
def set_draft_model(state: State, text: str) -> None:
    state.exchange(str(state.plan.folders.target), parsed(Text(), text.strip(), "the draft"))


@Command("/stats", "what was decoded so far, and how fast")
def show_stats(state: State, text: str) -> None:
    totals = {name: (stats, "") for name, stats in state.runner.totals.items()}
    state.console.print(table(totals) if totals else "nothing was decoded yet")


@Command("/quit", "leave; Ctrl-D too")
def leave(state: State, text: str) -> None:
    raise Quit
