"""The commands of the console: their names, what follows them, what they change. Each answers with a line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..decoding.acceptance import ACCEPTANCE, choose_rule
from ..decoding.request import SCHEDULES, output_ids
from .command import Command, Run, Value, Wrong, on_off, one_of, parsed, words
from .draft_options import draft_length
from .parser import real, whole
from .state import STORAGES, State
from .ways import DRAFTER, NGRAM, SPECULATIVE, TARGET

Parse = Callable[[str], Any]

TEMPERATURE, TOP_K, TOP_P = ("temperature", real(0, above=True)), ("top_k", whole(1)), ("top_p", real(0, 1, above=True))
PROCESSORS: dict[str, Sequence[tuple[str, Parse]]] = {
    "greedy": (),
    "multinomial": (TEMPERATURE,),
    "topk": (TEMPERATURE, TOP_K),
    "nucleus": (TEMPERATURE, TOP_P),
    "topknucleus": (TEMPERATURE, TOP_K, TOP_P),
}
OFF = {"temperature": 0.0, "top_k": 0, "top_p": 1.0}


def toggle(way: str) -> tuple[Run, Value]:
    def run(state: State, text: str) -> str:
        words(text, 0)
        return f"{way}: {on_off(state.toggle(way))}"

    return run, lambda state: on_off(way in state.ways)


def set_option(name: str, parse: Parse, what: str) -> tuple[Run, Value]:
    """For an option of the request that is one word."""

    def run(state: State, text: str) -> str:
        (word,) = words(text, 1)
        change(state, **{name: parsed(parse, word, what)})
        return f"{what}: {state.request[name]}"

    return run, lambda state: str(state.request[name])


def change(state: State, **changes: Any) -> None:
    """Only to what fits together."""
    changed = state.request | changes
    choose_rule(changed["sampling"], changed["acceptance"], changed["delta"])
    state.request = changed


def set_seed(state: State, text: str) -> str:
    (word,) = words(text, 1)
    seed = parsed(whole(0, 2**32 - 1), word, "seed")
    change(state, sampling=replace(state.request["sampling"], seed=seed))
    return f"seed: {seed}"


def set_gamma(state: State, text: str) -> str:
    (word,) = words(text, 1)
    state.set_num_draft(parsed(draft_length, word, "gamma"))
    return f"gamma: {state.session.length.describe()}"


def set_processor(state: State, text: str) -> str:
    name, *values = text.split() or [""]
    parsed(one_of(tuple(PROCESSORS)), name, "the processor")
    wanted = PROCESSORS[name]
    if len(values) != len(wanted):
        takes = " and ".join(field.replace("_", " ") for field, _ in wanted) or "nothing"
        raise Wrong(f"{name} takes {takes}, not {len(values)} values")
    found = {
        field: parsed(parse, value, field.replace("_", " "))
        for (field, parse), value in zip(wanted, values, strict=True)
    }
    change(state, sampling=replace(state.request["sampling"], **{**OFF, **found}))
    return f"processor: {processor(state)}"


def processor(state: State) -> str:
    """The name for what is set, where there is one, and its arguments."""
    sampling = state.request["sampling"]
    values = {name: getattr(sampling, name) for name, off in OFF.items() if getattr(sampling, name) != off}
    if not sampling.temperature:
        values = {}
    name = next(name for name, fields in PROCESSORS.items() if {field for field, _ in fields} == values.keys())
    return " ".join([name, *(f"{field} {value:g}" for field, value in values.items())])


def set_storage(state: State, text: str) -> str:
    kind, size = words(text, 2)
    parsed(one_of(tuple(STORAGES)), kind, "the storage")
    changes: dict[str, Any] = {"storage": kind, "max_ngram_size": parsed(whole(1), size, "the size")}
    if kind == "texts":
        changes["filler_top_k"] = 1
    state.set_copies(**changes)
    return f"n-gram storage: {storage(state)}; it is empty"


def storage(state: State) -> str:
    return f"{state.copies.storage} {state.copies.max_ngram_size}"


def set_filler(state: State, text: str) -> str:
    (word,) = words(text, 1)
    count = parsed(whole(1, 64), word, "the number")
    if state.copies.storage == "texts" and count > 1:
        raise Wrong("needs n-grams, not whole texts; /set_ngramstorage basic 3 first")
    state.set_copies(filler_top_k=count)
    return f"n-grams learn the {count} likeliest tokens of each place; the storage is empty"


def toggle_reset(state: State, text: str) -> str:
    words(text, 0)
    if state.keeps_store:
        raise Wrong(f"the store is that of --ngram-store {state.chosen.ngram_store}; start without it")
    state.reset_in_between = not state.reset_in_between
    return f"n-grams are forgotten in between: {on_off(state.reset_in_between)}"


def toggle_debug(state: State, text: str) -> str:
    wanted = (words(text, 0, 1) or ["text"])[0]
    if wanted not in ("text", "rounds"):
        raise Wrong(f"takes nothing or the word rounds, not {wanted!r}")
    state.show_draft = None if state.show_draft == wanted else wanted
    return f"the draft is {'shown' if state.show_draft else 'not shown'}"


def set_prefix(state: State, text: str) -> str:
    state.prefix = text
    return f"in front of every prompt: {text!r}" if text else "nothing in front of the prompt"


def set_output_prefix(state: State, text: str) -> str:
    output_ids(state.session.model, state.session.tokenizer, text, "the text")
    change(state, prefix=text)
    return f"every output begins behind: {text!r}" if text else "nothing in front of the output"


def set_model(state: State, text: str) -> str:
    names = words(text, 0, 1, 2)
    if names:
        chosen = argparse.Namespace(**vars(state.chosen))
        for name in ("model", "draft_model", "drafter", "num_draft", "regular_decode"):
            vars(chosen).pop(name, None)
        chosen.model = names[0]
        if len(names) == 2:
            chosen.draft_model = names[1]
        state.open(chosen)
    return state.description


def by_name(*commands: Command) -> dict[str, Command]:
    return {command.name: command for command in commands}


# /help, /clear, /stats and /quit need the screen: the console adds them.
COMMANDS = by_name(
    Command("/speculative", "decode speculatively: on or off", *toggle(SPECULATIVE)),
    Command("/target", "decode with the target alone too, to compare", *toggle(TARGET)),
    Command("/drafter", "decode with the draft alone too", *toggle(DRAFTER)),
    Command("/ngram", "decode with copies of the text as a draft too", *toggle(NGRAM)),
    Command(
        "/debug [rounds]",
        "show accepted, rejected and corrected tokens; or a line per round",
        toggle_debug,
        lambda state: state.show_draft or "off",
        ("rounds",),
    ),
    Command("/length N", "the most tokens to generate", *set_option("max_tokens", whole(1), "length")),
    Command(
        "/gamma N",
        f"tokens drafted per round; or {', '.join(SCHEDULES)}",
        set_gamma,
        lambda state: str(state.session.num_draft),
        SCHEDULES,
    ),
    Command(
        "/delta X", "accept more than the target would write, 0 to 1: lossy", *set_option("delta", real(0, 1), "delta")
    ),
    Command(
        "/processor greedy | multinomial T | topk T K | nucleus T P | topknucleus T K P",
        "how a token is chosen: temperature T, the K likeliest, the probability P they reach together",
        set_processor,
        processor,
        tuple(PROCESSORS),
    ),
    Command(
        f"/acceptance {'|'.join(ACCEPTANCE)}",
        "how samples are verified",
        *set_option("acceptance", one_of(ACCEPTANCE), "acceptance"),
        ACCEPTANCE,
    ),
    Command(
        "/seed N", "the same seed gives the same text", set_seed, lambda state: str(state.request["sampling"].seed)
    ),
    Command("/prefix [TEXT]", "put this in front of every prompt", set_prefix, lambda state: repr(state.prefix)),
    Command(
        "/output_prefix [TEXT]",
        "make every output begin with this",
        set_output_prefix,
        lambda state: repr(state.request.get("prefix", "")),
    ),
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
)
