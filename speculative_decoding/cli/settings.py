"""Commands of the console that set options of decoding; what they accept is what `GenerationOptions` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..decoding.request import output_ids
from ..sampling.options import ACCEPTANCE, SCHEDULES, abouts
from ..sampling.values import Number, Text, Value, Whole
from .command import Command, Wrong, parsed, words
from .state import State

LIMITS: Mapping[str, Value] = {
    "temperature": Number(0, above=True),
    "top_k": Whole(1),
    "top_p": abouts()["top_p"].value,
}
PROCESSORS = {
    "greedy": (),
    "multinomial": ("temperature",),
    "topk": ("temperature", "top_k"),
    "nucleus": ("temperature", "top_p"),
    "topknucleus": ("temperature", "top_k", "top_p"),
}
OFF = {"temperature": 0.0, "top_k": 0, "top_p": 1.0}


def setting(
    usage: str, meaning: str, option: str, choices: Sequence[str] = (), say: Callable[[State], str] | None = None
) -> Command:
    """A command for an option that is one word. say: how it is set, where its value does not say enough."""
    what = usage.split()[0].removeprefix("/")

    def now(state: State) -> str:
        return str(getattr(state.options, option))

    def run(state: State, text: str) -> str:
        (given,) = words(text, 1)
        state.change(**{option: parsed(abouts()[option].value, given, what)})
        return f"{what}: {(say or now)(state)}"

    return Command(usage, meaning, run, now, choices)


def set_processor(state: State, text: str) -> str:
    name, *given = text.split() or [""]
    wanted = PROCESSORS[parsed(Text(tuple(PROCESSORS)), name, "the processor")]
    if len(given) != len(wanted):
        takes = " and ".join(option.replace("_", " ") for option in wanted) or "nothing"
        raise Wrong(f"{name} takes {takes}, not {len(given)} values")
    values = {
        option: parsed(LIMITS[option], each, option.replace("_", " "))
        for option, each in zip(wanted, given, strict=True)
    }
    state.change(**{**OFF, **values})
    return f"processor: {processor(state)}"


def processor(state: State) -> str:
    """The name for what is set, and its arguments."""
    values = {name: getattr(state.options, name) for name, off in OFF.items() if getattr(state.options, name) != off}
    name = next(name for name, options in PROCESSORS.items() if options == tuple(values))
    return " ".join([name, *(f"{option} {value:g}" for option, value in values.items())])


def set_output_prefix(state: State, text: str) -> str:
    output_ids(state.session.model, state.session.tokenizer, text, "the text")
    state.change(prefix=text)
    return f"every output begins behind: {text!r}" if text else "nothing in front of the output"


SETTINGS = (
    setting("/length N", "the most tokens to generate", "max_tokens"),
    setting(
        "/gamma N",
        f"tokens drafted per round; or {', '.join(SCHEDULES)}",
        "num_draft",
        SCHEDULES,
        say=lambda state: state.session.length_of(state.options).describe(),
    ),
    setting("/delta X", "accept more than the target would write, 0 to 1: lossy", "delta"),
    Command(
        "/processor greedy | multinomial T | topk T K | nucleus T P | topknucleus T K P",
        "how a token is chosen: temperature T, the K likeliest, the probability P they reach together",
        set_processor,
        processor,
        tuple(PROCESSORS),
    ),
    setting(f"/acceptance {'|'.join(ACCEPTANCE)}", "how samples are verified", "acceptance", ACCEPTANCE),
    setting("/seed N", "the same seed gives the same text", "seed"),
    Command(
        "/output_prefix [TEXT]",
        "make every output begin with this",
        set_output_prefix,
        lambda state: repr(state.options.prefix),
    ),
)
