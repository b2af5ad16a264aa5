"""The one place where an option of decoding exists: its name, type, default, limits and help, and whether the rows of
a batch may differ in it.

Python keywords, flags of the command line and fields of a file of prompts are all made from `GenerationOptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache, wraps
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar, get_args, get_type_hints

from ..errors import InputError
from .values import Either, Number, Several, Switch, Text, Value, Whole

P = ParamSpec("P")
R = TypeVar("R")

ACCEPTANCE = ("rejection", "block", "coupled")
DRAFTERS = ("model", "ngram", "auto", "none")
SCHEDULES = ("auto",)
MAX_SEED = 2**32 - 1
MOST_DRAFTED = 64
MOST_TOKENS = 1 << 20
MOST_REPEATED = 64
MOST_BEAMS = 128
MOST_SEQUENCES = 1 << 10

SHARED = "shared"  # by all rows of a batch
# Not with beams: nothing is sampled and nothing is drafted, and of stop strings transformers says nothing that fits.
WITHOUT_BEAMS = ("temperature", "drafter", "num_draft_tokens", "delta", "stop", "strict", "logprobs")


class About(NamedTuple):
    """What is known of an option. per_row: whether rows of a batch may differ in it."""

    value: Value
    help: str
    per_row: bool


ALIASES = {  # former names of options, accepted wherever options are read
    "num_draft": "num_draft_tokens",
    "source_language": "src_lang",
    "target_language": "tgt_lang",
    "prefix": "decoder_prefix",
}


def current_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under the options' current names. Raises `InputError` for an option given under both names."""
    renamed = {ALIASES.get(name, name): value for name, value in given.items()}
    if len(renamed) < len(given):
        former = next(name for name in given if name in ALIASES and ALIASES[name] in given)
        raise InputError(f"{ALIASES[former]} is given twice, also as {former}; leave one of them out")
    return renamed


def accepts_aliases(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which then also accepts its keywords under the names in `ALIASES`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **current_names(kwargs))

    return call


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How a prompt is decoded. Raises `InputError` that names the option."""

    temperature: Annotated[
        float, Number(1e-10, 1e10, or_zero=True), "0 takes the most likely token, above 0 samples"
    ] = 0.0
    top_k: Annotated[int, Whole(0), "only the K most likely tokens; 0 is off"] = 0
    top_p: Annotated[
        float, Number(0, 1, above=True), "only the fewest tokens that together are this likely; 1 is off"
    ] = 1.0
    min_p: Annotated[float, Number(0, 1), "only tokens this likely compared to the most likely one; 0 is off"] = 0.0
    repetition_penalty: Annotated[
        float | None,
        Number(1e-10, 1e10),
        "above 1 makes tokens that the decoder has read less likely, at temperature 0 too; 1 is off, and the default "
        "what the model's generation_config.json says",
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None, Whole(0, MOST_REPEATED), "no N tokens in a row come twice; 0 is off, the default likewise"
    ] = None
    min_tokens: Annotated[
        int | None, Whole(0, MOST_TOKENS), "no end before N tokens were generated; the default likewise"
    ] = None
    seed: Annotated[
        int,
        Whole(0, MAX_SEED),
        "the same seed and options give the same text; where drafts learn (num_draft_tokens auto, copies) with "
        "acceptance coupled only",
    ] = 0
    max_tokens: Annotated[int, Whole(1, MOST_TOKENS), "the most tokens to generate"] = 100
    src_lang: Annotated[
        str | None, Text(), "of the prompt, as the tokenizer names it (NLLB: eng_Latn), where a model has languages"
    ] = None
    tgt_lang: Annotated[str | None, Text(), "to write in, likewise"] = None
    stop: Annotated[
        Sequence[str], Several(Text()), "end in front of this text, none of which is ever given out; may be repeated"
    ] = ()
    eos_token_ids: Annotated[Sequence[int], Several(Whole(0)), "end at this token too; may be repeated"] = ()
    decoder_prefix: Annotated[
        str | Sequence[int],
        Either((Text(may_be_empty=True), Several(Whole(0)))),
        "make the output begin with this (from Python also ids); it is no part of text, tokens and max_tokens",
    ] = ""
    num_beams: Annotated[
        int, Whole(1, MOST_BEAMS), "follow the N likeliest outputs, without drafts; 1 is off", SHARED
    ] = 1
    length_penalty: Annotated[
        float | None,
        Number(-10, 10),
        "beams are compared by their log-probability / length ** this; the default what the model's "
        "generation_config.json says, else 1",
    ] = None
    early_stopping: Annotated[
        bool | str | None,
        Either((Switch(), Text(("never",)))),
        "true: as soon as as many outputs as beams have ended; false: when a better one is unlikely; never: when none "
        "is possible; the default likewise, else false",
    ] = None
    num_return_sequences: Annotated[
        int, Whole(1, MOST_SEQUENCES), "give the N best of the beams, or N samples of a prompt"
    ] = 1
    drafter: Annotated[
        str | Any | None,
        Either((Text(DRAFTERS),), "an object with begin and propose"),
        "where drafts come from: model; ngram, the text itself (prompt, output, a store); auto, a copy where it is "
        "likely right, else the model; or none. By default auto with a draft model, ngram without one",
        SHARED,
    ] = None
    num_draft_tokens: Annotated[
        int | str | Any,
        Either((Whole(0, MOST_DRAFTED), Text(SCHEDULES)), "a DraftLength"),
        f"tokens drafted per round, 0 to {MOST_DRAFTED}; or auto: as many as their cost and acceptance make worth it",
    ] = "auto"
    acceptance: Annotated[
        str,
        Text(ACCEPTANCE),
        "above temperature 0, all three exact: rejection, the original rule; block, which keeps a little more; "
        "coupled, whose output for a seed does not depend on the draft",
    ] = "rejection"
    delta: Annotated[float, Number(0, 1), "accept more than the target would write; above 0 the output is lossy"] = 0.0
    max_ngram_size: Annotated[int, Whole(1), "the longest stretch of text to look up", SHARED] = 16
    strict: Annotated[
        bool | None,
        Switch(),
        "compute all passes of the target at widths that give the same bits, so that a draft changes no token in any "
        "precision; by default where it costs less than 3 percent",
        SHARED,
    ] = None
    allow_long_prompt: Annotated[bool, Switch(), "accept a prompt longer than the model was trained on", SHARED] = False
    logprobs: Annotated[
        bool, Switch(), "every token's log-probability under the target, at temperature 1 and before all options"
    ] = False
    timed: Annotated[bool, Switch(), "tell draft and verify time apart; a little slower", SHARED] = False

    def __post_init__(self) -> None:
        for name, about in abouts().items():
            if default(name) is not None or getattr(self, name) is not None:  # None: nobody chose
                object.__setattr__(self, name, accepted(name, about.value, getattr(self, name)))
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise InputError(f"min_tokens must be <= max_tokens ({self.max_tokens}), not {self.min_tokens}; change one")
        if self.acceptance != "rejection" and self.delta:
            raise InputError(f"delta relaxes acceptance rejection only, not {self.acceptance}; leave one of them out")
        self._check_beams()

    def _check_beams(self) -> None:
        count, beams = self.num_return_sequences, self.num_beams
        if beams == 1:
            if count > 1 and self.is_greedy:
                raise InputError(
                    f"num_return_sequences {count} would be {count} times the same text; give num_beams >= {count}, "
                    "or a temperature above 0"
                )
            return
        if count > beams:
            raise InputError(f"num_return_sequences must be <= num_beams ({beams}), not {count}; change one of them")
        for name in WITHOUT_BEAMS:
            value = getattr(self, name)
            if value != default(name) and value != "none" and value is not False:  # no drafter, not strict
                raise InputError(f"{name} {short(value)} does not go with num_beams {beams}; leave one of them out")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def num_samples(self) -> int:
        """How many outputs are drawn of a prompt."""
        return self.num_return_sequences if self.num_beams == 1 else 1

    @property
    def has_penalty(self) -> bool:
        return self.repetition_penalty not in (None, 1)

    @property
    def is_lossless(self) -> bool:
        """Whether the output follows the target's distribution, as computed."""
        return self.delta == 0

    @property
    def is_comparable(self) -> bool:
        """Whether two runs, with different drafts or none, must give the same tokens."""
        return self.is_greedy or self.acceptance == "coupled"

    def changed(self, given: Mapping[str, Any]) -> GenerationOptions:
        """With other values for the options in `given`. Raises `InputError` for an option that does not exist, a value
        that is not wanted, and an option that would have no effect.
        """
        given = current_names(given)
        for name in given:
            if name not in abouts():
                raise InputError(unknown(name))
        options = replace(self, **given)
        for name in given:
            if getattr(options, name) != default(name) and (reason := options._why_without_effect(name)):
                raise InputError(f"{name} has no effect {reason}; leave one of them out")
        return options

    def for_row(self, given: Mapping[str, Any]) -> GenerationOptions:
        """`changed`, for one row of a batch: only by options in which rows may differ."""
        given = current_names(given)
        for name in given:
            if name in abouts() and not abouts()[name].per_row:
                raise InputError(f"{name} holds for all rows; give it for all of them")
        return self.changed(given)

    def _why_without_effect(self, name: str) -> str:
        """In words, or "" for an option that has one."""
        if self.num_beams == 1 and name in ("length_penalty", "early_stopping"):
            return "with num_beams 1"
        if self.is_greedy and name in ("top_k", "top_p", "min_p", "acceptance"):
            return "at temperature 0"
        if self.drafter == "none" and name in ("num_draft_tokens", "delta"):
            return "" if name == "num_draft_tokens" and self.num_draft_tokens == 0 else "with drafter none"
        if self.num_draft_tokens == 0 and name in ("drafter", "delta") and self.drafter != "none":
            return "with num_draft_tokens 0"
        if name == "max_ngram_size" and isinstance(self.drafter, str) and self.drafter not in ("ngram", "auto"):
            return f"with drafter {self.drafter}: it is for ngram and auto"
        return ""


@cache
def abouts() -> Mapping[str, About]:
    """What is known of each option, by its name, in order."""
    hints = get_type_hints(GenerationOptions, include_extras=True)
    parts = {each.name: get_args(hints[each.name])[1:] for each in fields(GenerationOptions)}
    return {name: About(value, help, SHARED not in shared) for name, (value, help, *shared) in parts.items()}


def default(name: str) -> Any:
    return getattr(GenerationOptions, name)


def accepted(name: str, value: Value, given: Any) -> Any:
    """The value as it is kept. Raises `InputError` that names the option."""
    try:
        return value.accept(given)
    except (ValueError, TypeError):
        raise InputError(f"{name} {refusal(value, given)}") from None


def refusal(value: Value, given: Any) -> str:
    """Why an option does not take a value, in words that follow its name."""
    if isinstance(given, str) and given in REMOVED_SCHEDULES:
        return f"{given} was removed; use auto"
    return f"must be {value.wanted}, not {short(given)}"


def short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # as of a number of thousands of digits
        text = f"that {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def unknown(name: str) -> str:
    """Why there is no such option, in a line, with what may have been meant."""
    if name in REMOVED:
        return f"there is no option {name!r} any more; use {REMOVED[name]}"
    meant = OTHER_NAMES.get(name, next(iter(get_close_matches(str(name), abouts(), 1)), ""))
    return f"there is no option {name!r}; " + (
        f"did you mean {meant}?" if meant else f"there are {', '.join(abouts())}"
    )


REMOVED = {
    "confidence_threshold": "num_draft_tokens auto",
    "min_ngram_size": "max_ngram_size alone",
}  # with replacements
REMOVED_SCHEDULES = ("heuristic", "heuristic_transient")  # of num_draft_tokens; auto replaces them

OTHER_NAMES = {  # other libraries' names, and our own flags'; "": there is nothing like it
    "num_beam_groups": "",
    "diversity_penalty": "",
    "beam_size": "num_beams",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "min_new_tokens": "min_tokens",
    "min_length": "min_tokens",
    "forced_bos_token_id": "tgt_lang",
    "temp": "temperature",
    "do_sample": "temperature",
    "sampling": "temperature, top_k, top_p, min_p, repetition_penalty or seed by themselves",
    "num_assistant_tokens": "num_draft_tokens",
    "output_prefix": "decoder_prefix",
    "eos_token_id": "eos_token_ids",
    "stop_strings": "stop",
    "assistant_confidence_threshold": "num_draft_tokens",
}


GenerationOptions.__init__ = accepts_aliases(GenerationOptions.__init__)  # type: ignore[method-assign]
GenerationOptions.__doc__ = "\n".join(
    [f"{GenerationOptions.__doc__}\n", *(f"    {name}: {about.help}." for name, about in abouts().items())]
)
