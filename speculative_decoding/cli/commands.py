"""The commands of the console: their names, what follows them, what they change. Each answers with a line."""

from __future__ import annotations

from ..sampling.values import Text, Whole
from .command import Command, Wrong, by_name, parsed, words
from .settings import SETTINGS
from .state import STORAGES, State
from .ways import DRAFTER, NGRAM, SPECULATIVE, TARGET


def on_off(is_on: bool) -> str:
    return "on" if is_on else "off"


def toggle(way: str, meaning: str) -> Command:
    def run(state: State, text: str) -> str:
        words(text, 0)
        return f"{way}: {on_off(state.toggle(way))}"

    return Command(f"/{way}", meaning, run, lambda state: on_off(way in state.ways))


def set_storage(state: State, text: str) -> str:
    kind, size = words(text, 2)
    parsed(Text(tuple(STORAGES)), kind, "the storage")
    count = parsed(Whole(1), size, "the size")
    state.set_copies(kind, count, 1 if kind == "texts" else state.copies.filler_top_k)
    return f"n-gram storage: {storage(state)}; it is empty"


def storage(state: State) -> str:
    return f"{state.copies.storage} {state.copies.max_ngram_size}"


def set_filler(state: State, text: str) -> str:
    (given,) = words(text, 1)
    count = parsed(Whole(1, 64), given, "the number")
    if state.copies.storage == "texts" and count > 1:
        raise Wrong("needs n-grams, not whole texts; /set_ngramstorage basic 3 first")
    state.set_copies(state.copies.storage, state.copies.max_ngram_size, count)
    return f"n-grams learn the {count} likeliest tokens of each place; the storage is empty"


def toggle_reset(state: State, text: str) -> str:
    words(text, 0)
    state.require_own_store()
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


def set_model(state: State, text: str) -> str:
    if names := words(text, 0, 1, 2):
        state.exchange(*names)
    return state.plan.describe()


# /help, /clear, /stats and /quit need the screen: the console adds them.
COMMANDS = by_name(
    toggle(SPECULATIVE, "decode speculatively: on or off"),
    toggle(TARGET, "decode with the target alone too, to compare"),
    toggle(DRAFTER, "decode with the draft alone too"),
    toggle(NGRAM, "decode with copies of the text as a draft too"),
    Command(
        "/debug [rounds]",
        "show accepted, rejected and corrected tokens; or a line per round",
        toggle_debug,
        lambda state: state.show_draft or "off",
        ("rounds",),
    ),
    *SETTINGS,
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
)
