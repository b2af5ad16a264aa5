"""The commands of the console: their names, what follows them, what they do. Each answers with a line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text as Line

from ..errors import InputError
from ..sampling.options import ACCEPTANCE, SCHEDULES, abouts
from ..sampling.values import Text, Value, Whole
from .command import Command, find
from .parser import word
from .state import STORAGES, State
from .summaries import accepted_bars, table
from .ways import DRAFTER, NGRAM, SPECULATIVE, TARGET

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


def parsed(value: Value, text: str, what: str) -> Any:
    try:
        return word(value)(text)
    except argparse.ArgumentTypeError as error:
        raise InputError(f"{what} {error}") from error


def on_off(is_on: bool) -> str:
    return "on" if is_on else "off"


def way(name: str, meaning: str) -> Command:
    """A command that turns a way of decoding on or off."""

    def run(state: State, text: str) -> str:
        return f"{name}: {on_off(state.toggle(name))}"

    return Command(f"/{name}", meaning, run, lambda state: on_off(name in state.ways))


def setting(usage: str, option: str, choices: Sequence[str] = ()) -> Command:
    """A command that sets an option of decoding; what it accepts and means is what `GenerationOptions` says."""
    name, about = usage.split()[0].removeprefix("/"), abouts()[option]

    def now(state: State) -> str:
        return str(getattr(state.options, option))

    def run(state: State, text: str) -> str:
        state.change({option: parsed(about.value, text if option == "prefix" else text.strip(), name)})
        drafts = option == "num_draft"
        return f"{name}: {state.session.length_of(state.options).describe() if drafts else now(state) or 'nothing'}"

    return Command(usage, about.help, run, now, choices)


def set_processor(state: State, text: str) -> str:
    name, *given = text.split() or [""]
    wanted = PROCESSORS[parsed(Text(tuple(PROCESSORS)), name, "the processor")]
    if len(given) != len(wanted):
        raise InputError(f"{name} takes {' and '.join(wanted) or 'nothing'}, not {len(given)} values")
    values = [parsed(abouts()[option].value, each, option) for option, each in zip(wanted, given, strict=True)]
    if off := [option for option, value in zip(wanted, values, strict=True) if not value]:
        raise InputError(f"{off[0]} must be above 0 for {name}")
    state.change({**OFF, **dict(zip(wanted, values, strict=True))})
    return f"processor: {processor(state)}"


def processor(state: State) -> str:
    """The name for what is set, and its arguments."""
    values = {name: getattr(state.options, name) for name, off in OFF.items() if getattr(state.options, name) != off}
    name = next(name for name, options in PROCESSORS.items() if options == tuple(values))
    return " ".join([name, *(f"{option} {value:g}" for option, value in values.items())])


def set_prefix(state: State, text: str) -> str:
    state.prefix = text
    return f"in front of every prompt: {text!r}" if text else "nothing in front of the prompt"


def set_model(state: State, text: str) -> str:
    names = text.split()
    if len(names) > 2:
        raise InputError(f"takes a target and a draft, not {len(names)} names")
    if names:
        state.exchange(*names)
    return state.plan.describe()


def set_storage(state: State, text: str) -> str:
    kind, _, size = text.strip().partition(" ")
    parsed(Text(tuple(STORAGES)), kind, "the storage")
    count = parsed(Whole(1), size, "the size")
    state.set_copies(kind, count, 1 if kind == "texts" else state.copies.filler_top_k)
    return f"n-gram storage: {storage(state)}; it is empty"


def storage(state: State) -> str:
    return f"{state.copies.storage} {state.copies.max_ngram_size}"


def set_filler(state: State, text: str) -> str:
    count = parsed(Whole(1, 64), text, "the number")
    if state.copies.storage == "texts" and count > 1:
        raise InputError("needs n-grams, not whole texts; /set_ngramstorage basic 3 first")
    state.set_copies(state.copies.storage, state.copies.max_ngram_size, count)
    return f"n-grams learn the {count} likeliest tokens of each place; the storage is empty"


def toggle_reset(state: State, text: str) -> str:
    state.require_own_store()
    state.reset_in_between = not state.reset_in_between
    return f"n-grams are forgotten in between: {on_off(state.reset_in_between)}"


def toggle_debug(state: State, text: str) -> str:
    wanted = text.strip() or "text"
    parsed(Text(("text", "rounds")), wanted, "the view")
    state.runner.show_draft = None if state.runner.show_draft == wanted else wanted
    return f"the draft is {'shown' if state.runner.show_draft else 'not shown'}"


def explain(state: State, text: str) -> str:
    if text.strip():
        command = find(COMMANDS, f"/{text.strip().removeprefix('/')}")
        now = command.now(state)
        return f"usage: {command.usage}\n{command.meaning}" + (f"\nnow: {now}" if now else "")
    listed = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for command in COMMANDS.values():
        now = command.now(state)
        listed.add_row(Line(command.usage), Line(command.meaning + (f" (now {now})" if now else "")))
    state.console.print(listed)
    return "Any other line is a prompt; one that begins with / is written with two."


def show_stats(state: State, text: str) -> str:
    totals = state.runner.totals
    if not totals:
        return "nothing was decoded yet"
    rows = {name: (stats, "") for name, stats in totals.items()}
    state.console.print(table(state.console, rows, same_prompts=False))
    lines = []
    for name, stats in totals.items():
        if stats.drafted_tokens:
            lines += [f"{name}, by round:", *accepted_bars(stats.accepted_histogram, state.console.width)]
    return "\n".join(lines)


def clear(state: State, text: str) -> str:
    state.console.clear()
    return ""


def leave(state: State, text: str) -> str:
    raise Quit


ALL = (
    Command("/help [COMMAND]", "this list, or one of it", explain),
    way(SPECULATIVE, "decode speculatively: on or off"),
    way(TARGET, "decode with the target alone too, to compare"),
    way(DRAFTER, "decode with the draft alone too"),
    way(NGRAM, "decode with copies of the text as a draft too"),
    Command(
        "/debug [rounds]",
        "show accepted, rejected and corrected tokens; or a line per round",
        toggle_debug,
        lambda state: state.runner.show_draft or "off",
        ("rounds",),
    ),
    setting("/length N", "max_tokens"),
    setting("/gamma N", "num_draft", SCHEDULES),
    setting("/delta X", "delta"),
    Command(
        "/processor greedy | multinomial T | topk T K | nucleus T P | topknucleus T K P",
        "how a token is chosen: temperature T, the K likeliest, the probability P they reach together",
        set_processor,
        processor,
        tuple(PROCESSORS),
    ),
    setting(f"/acceptance {'|'.join(ACCEPTANCE)}", "acceptance", ACCEPTANCE),
    setting("/seed N", "seed"),
    setting("/output_prefix [TEXT]", "prefix"),
    Command("/prefix [TEXT]", "put this in front of every prompt", set_prefix, lambda state: repr(state.prefix)),
    Command("/model [TARGET [DRAFT]]", "which models these are, or load others", set_model),
    Command(
        f"/set_ngramstorage {'|'.join(STORAGES)} N",
        "what /ngram remembers: all n-grams up to N tokens, only those of N, or whole texts",
        set_storage,
        storage,
        tuple(STORAGES),
    ),
    Command(
        "/top_k_filler N",
        "n-grams also learn the target's N likeliest tokens",
        set_filler,
        lambda state: str(state.copies.filler_top_k),
    ),
    Command(
        "/reset_in_between",
        "forget the n-grams of earlier prompts: on or off",
        toggle_reset,
        lambda state: on_off(state.reset_in_between),
    ),
    Command("/stats", "what was decoded so far, and how fast", show_stats),
    Command("/clear", "clear the screen", clear),
    Command("/quit", "leave; Ctrl-D too", leave),
)
COMMANDS = {command.name: command for command in ALL}
