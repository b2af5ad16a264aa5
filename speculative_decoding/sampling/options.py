"""The decoding options: names, types, defaults, limits and help texts.

`GenerationOptions` declares each option once, for Python keywords, command-line flags, and the fields of input files
and request bodies. To add an option, add a field there and a line to keywords.py; a test checks that they agree.

A field is `name: Annotated[type, Value, "help", *marks] = default`. The marks are the constants below and those of
values.py: `Flag("num-draft")` for a flag whose name differs from the option's, `Flag(short="-m")` for a short form,
`PYTHON_ONLY` for an option without a flag, `BASIC` for one of the few flags that --help lists, and `FOR_ALL_ROWS` for
an option that all rows share.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from inspect import Parameter
from typing import Annotated, Any, ParamSpec, TypeVar

from ..errors import InputError, Message, Name, UnknownOption, joined, shown, similar_names
from ..subpackages import require_subpackage
from .drafters import DRAFTERS
from .values import (
    BASIC,
    FOR_ALL_ROWS,
    PYTHON_ONLY,
    Bool,
    Flag,
    Int,
    ListOf,
    Number,
    OneOrMore,
    OptionSpec,
    Text,
    Union,
    Value,
    specs_of,
)

Options = TypeVar("Options")
P = ParamSpec("P")
R = TypeVar("R")

SCHEDULES = ("auto",)
MAX_SEED = 2**32 - 1
MAX_DRAFT_TOKENS = 64
MAX_TOKENS = 1 << 20
MAX_REPEATED = 64
MAX_DRAFT_TEXT = 10_000_000  # characters; preparing so long a text takes ten seconds and 1.6 GB

# Marks of fields
FOR_SPEECH = "for speech"  # also a transcription option; a transcription sets all others itself
SAMPLES_ONLY = "samples only"  # has no effect at temperature 0
BEAMS_ONLY = "beams only"  # has no effect without beam search
NOT_WITH_BEAMS = "not with beams"

LOSSLESS = "lossless"  # samples follow the target's distribution
COMPARABLE = "comparable"  # for a given seed, the text does not depend on the drafts
TAKES_DELTA = "takes delta"  # accepts a `delta`, which relaxes the rule and makes it lossy
ACCEPTANCE: Mapping[str, Collection[str]] = {  # the rules in decoding/acceptance.py and their properties
    "rejection": (LOSSLESS, TAKES_DELTA),
    "block": (LOSSLESS,),
    "coupled": (LOSSLESS, COMPARABLE),
}
LOSSLESS_RULES = [name for name, facts in ACCEPTANCE.items() if LOSSLESS in facts]
COMPARABLE_RULES = [name for name, facts in ACCEPTANCE.items() if COMPARABLE in facts]
DEFAULT_RULE, RELAXED_RULE = "coupled", "rejection"  # the default rules without and with a `delta`

OPTIONS_BY_OTHER_NAME: Mapping[str, Sequence[str]] = {  # name in other libraries or old versions -> options to suggest
    "num_beam_groups": (),
    "diversity_penalty": (),
    "beam_size": ("num_beams",),
    "vad_filter": ("vad",),
    "max_tokens": ("sample_len",),
    "max_new_tokens": ("max_tokens", "sample_len"),
    "max_length": ("max_tokens",),
    "min_new_tokens": ("min_tokens",),
    "min_length": ("min_tokens",),
    "forced_bos_token_id": ("tgt_lang",),
    "src_lang": ("language",),
    "source_language": ("src_lang", "language"),
    "target_language": ("tgt_lang",),
    "temp": ("temperature",),
    "do_sample": ("temperature",),
    "sampling": ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"),
    "num_draft": ("num_draft_tokens",),
    "num_assistant_tokens": ("num_draft_tokens",),
    "assistant_confidence_threshold": ("num_draft_tokens",),
    "confidence_threshold": ("num_draft_tokens",),
    "min_ngram_size": ("max_ngram_size",),
    "regular_decode": ("baseline",),
    "prefix": ("decoder_prefix",),
    "output_prefix": ("decoder_prefix",),
    "eos_token_id": ("eos_token_ids",),
    "stop_strings": ("stop",),
}


def documented(cls: type[Options]) -> type[Options]:
    """Add the help of each field to the docstring of a dataclass of options."""
    lines = [f"    {name}: {shown(spec.help)}." for name, spec in specs_of(cls).items()]  # type: ignore[arg-type]
    cls.__doc__ = "\n".join([f"{cls.__doc__}\n", *lines])
    return cls


@documented
@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Options for decoding a prompt. A value that is not accepted raises an `InputError` that names the option."""

    temperature: Annotated[
        float,
        Number(1e-10, 1e10, or_zero=True),
        "sampling temperature; 0 takes the most likely token",
        BASIC,
        NOT_WITH_BEAMS,
    ] = 0.0
    top_k: Annotated[int, Int(0), "sample from the K most likely tokens (0: off)", SAMPLES_ONLY, FOR_SPEECH] = 0
    top_p: Annotated[
        float,
        Number(0, 1, exclusive=True),
        "sample from the smallest set of tokens with this probability (1: off)",
        SAMPLES_ONLY,
        FOR_SPEECH,
    ] = 1.0
    min_p: Annotated[
        float,
        Number(0, 1),
        "drop tokens less likely than this fraction of the most likely one (0: off)",
        SAMPLES_ONLY,
        FOR_SPEECH,
    ] = 0.0
    repetition_penalty: Annotated[
        float | None,
        Number(1e-10, 1e10),
        "penalize repeated tokens, by values above 1 (1: off; default: from generation_config.json)",
        FOR_SPEECH,
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None,
        Int(0, MAX_REPEATED),
        "forbid repeated N-grams (0: off; default: from generation_config.json)",
        FOR_SPEECH,
    ] = None
    min_tokens: Annotated[
        int | None, Int(0, MAX_TOKENS), "minimum number of tokens (default: from generation_config.json)"
    ] = None
    seed: Annotated[
        int,
        Int(0, MAX_SEED),
        "seed of the random numbers; it gives the same text with any draft and without one",
        BASIC,
        FOR_SPEECH,
    ] = 0
    max_tokens: Annotated[int, Int(1, MAX_TOKENS), "maximum number of tokens", BASIC, Flag(short="-m")] = 100
    src_lang: Annotated[
        str | None,
        Text(),
        "language of the prompt, as the tokenizer names it (NLLB: eng_Latn), for multilingual models",
        BASIC,
        Flag("source-language"),
    ] = None
    tgt_lang: Annotated[
        str | None, Text(), "language of the output, as the tokenizer names it", BASIC, Flag("target-language")
    ] = None
    stop: Annotated[
        Sequence[str], ListOf(Text()), "end the output before this text; may be repeated", NOT_WITH_BEAMS
    ] = ()
    eos_token_ids: Annotated[
        Sequence[int], ListOf(Int(0)), "end the output at this token, too; may be repeated", Flag("eos-token-id")
    ] = ()
    decoder_prefix: Annotated[
        str | Sequence[int],
        Union((Text(may_be_empty=True), ListOf(Int(0)))),
        "start the output with this text, which is not returned and does not count (in Python, also token ids)",
        Flag("output-prefix"),
    ] = ""
    num_beams: Annotated[
        int, Int(1, 128), "search with N beams, without drafts (1: off)", BASIC, FOR_ALL_ROWS, FOR_SPEECH
    ] = 1
    length_penalty: Annotated[
        float | None,
        Number(-10, 10),
        "score beams by log-probability / length ** X (default: from generation_config.json, else 1)",
        BEAMS_ONLY,
    ] = None
    early_stopping: Annotated[
        bool | str | None,
        Union((Bool(), Text(("never",)))),
        Message(
            "stop the search when {num_beams} outputs are finished (true), a better one is unlikely "
            "(false), or a better one is impossible (never) (default: from generation_config.json, else false)"
        ),
        BEAMS_ONLY,
    ] = None
    num_return_sequences: Annotated[int, Int(1, 1024), "return the N best beams, or N samples"] = 1
    drafter: Annotated[
        str | Any | None,
        Union((Text(tuple(DRAFTERS)),), or_object=True),
        f"where drafts come from: {', '.join(facts.described(name) for name, facts in DRAFTERS.items())} "
        "(default: auto with a draft model, else ngram)",
        FOR_ALL_ROWS,
        FOR_SPEECH,
        NOT_WITH_BEAMS,
    ] = None
    draft_text: Annotated[
        str | Sequence[str],
        OneOrMore(Text(may_be_empty=True)),
        "text that the output may resemble, such as an earlier version of it; may be repeated",
        BASIC,
        FOR_SPEECH,
        NOT_WITH_BEAMS,
    ] = ()
    num_draft_tokens: Annotated[
        int | str | Any,
        Union((Int(0, MAX_DRAFT_TOKENS), Text(SCHEDULES)), or_object=True),
        f"draft tokens per round, 0 to {MAX_DRAFT_TOKENS}; auto picks the fastest number from costs and acceptance",
        BASIC,
        Flag("num-draft"),
        FOR_SPEECH,
        NOT_WITH_BEAMS,
    ] = "auto"
    acceptance: Annotated[
        str | None,
        Text(tuple(ACCEPTANCE)),
        f"acceptance rule for sampling; lossless are {', '.join(LOSSLESS_RULES)}; with "
        f"{' and '.join(COMPARABLE_RULES)}, the text for a seed does not depend on the drafts "
        f"(default: {DEFAULT_RULE}; with a delta above 0, {RELAXED_RULE})",
        SAMPLES_ONLY,
        FOR_SPEECH,
    ] = None
    delta: Annotated[
        float,
        Number(0, 1),
        "accept more draft tokens by this much; above 0 the output is lossy",
        BASIC,
        FOR_SPEECH,
        NOT_WITH_BEAMS,
    ] = 0.0
    max_ngram_size: Annotated[int, Int(1), "longest n-gram to look up", FOR_ALL_ROWS, FOR_SPEECH] = 16
    strict: Annotated[
        bool | None,
        Bool(),
        "use pass widths with bit-identical results only, so that drafts change no token in any precision (default: "
        "where all usual widths are such)",
        BASIC,
        FOR_ALL_ROWS,
        FOR_SPEECH,
        NOT_WITH_BEAMS,
    ] = None
    allow_long_prompt: Annotated[bool, Bool(), "accept prompts longer than the model was trained on", FOR_ALL_ROWS] = (
        False
    )
    logprobs: Annotated[
        bool,
        Bool(),
        "return the log-probability of each token under the target at temperature 1, without penalties",
        PYTHON_ONLY,
        NOT_WITH_BEAMS,
    ] = False
    timed: Annotated[
        bool,
        Bool(),
        "measure drafting and verification separately, which is slightly slower",
        PYTHON_ONLY,
        FOR_ALL_ROWS,
        FOR_SPEECH,
    ] = False

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise InputError(
                Message("must be <= {max_tokens} ({limit}), not {value}", limit=self.max_tokens, value=self.min_tokens),
                "min_tokens",
                "change one",
            )
        if (count := sum(map(len, self.draft_text))) > MAX_DRAFT_TEXT:
            raise InputError(f"has {count:,} characters (at most {MAX_DRAFT_TEXT:,})", "draft_text", "shorten it")
        if self.delta and TAKES_DELTA not in ACCEPTANCE[self.rule]:
            raise InputError(
                Message("relaxes {acceptance} {relaxed} only, not {chosen}", relaxed=RELAXED_RULE, chosen=self.rule),
                "delta",
                "leave one of them out",
            )
        if self.num_beams > 1:
            self._check_beam_search()
        elif self.num_return_sequences > 1 and self.is_greedy:
            count = self.num_return_sequences
            raise InputError(
                Message("{count} would return one text {count} times at {temperature} 0", count=count),
                "num_return_sequences",
                Message("give {num_beams} >= {count}, or a {temperature} above 0", count=count),
            )

    def _check_beam_search(self) -> None:
        require_subpackage("beam_search", "num_beams")
        if self.num_return_sequences > self.num_beams:
            raise InputError(
                Message(
                    "must be <= {num_beams} ({limit}), not {value}",
                    limit=self.num_beams,
                    value=self.num_return_sequences,
                ),
                "num_return_sequences",
                "change one of them",
            )
        # Beam search neither samples nor drafts, and transformers does not define how it combines with stop strings.
        for name, spec in option_specs().items():
            value = getattr(self, name)
            is_off = value == "none" if name == "drafter" else value is False
            if NOT_WITH_BEAMS in spec.marks and value != spec.default and not is_off:
                given = value[0] if isinstance(value, tuple) and len(value) == 1 else value
                raise InputError(
                    Message(
                        "{value} cannot be combined with {num_beams} {beams}",
                        value=short_repr(given),
                        beams=self.num_beams,
                    ),
                    name,
                    "leave one of them out",
                )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def rule(self) -> str:
        """The acceptance rule at temperatures above 0."""
        return self.acceptance or (RELAXED_RULE if self.delta else DEFAULT_RULE)

    @property
    def draft_tokens(self) -> Any:
        """`num_draft_tokens`, or 0 if `drafter` is "none"."""
        return 0 if self.drafter == "none" else self.num_draft_tokens

    @property
    def runs_draft_model(self) -> bool:
        """Whether these options use a draft model or head. `drafter` must not be None."""
        return self.draft_tokens != 0 and isinstance(self.drafter, str) and DRAFTERS[self.drafter].uses_model

    @property
    def looks_up_ngrams(self) -> bool:
        """Whether drafts may be copies of earlier text. `drafter` must not be None."""
        return isinstance(self.drafter, str) and DRAFTERS[self.drafter].uses_ngrams

    @property
    def follows_texts(self) -> bool:
        """Whether drafts may come from given texts. `drafter` must not be None."""
        return isinstance(self.drafter, str) and DRAFTERS[self.drafter].uses_texts

    @property
    def num_samples(self) -> int:
        """The number of outputs that are decoded independently of each other."""
        return self.num_return_sequences if self.num_beams == 1 else 1

    @property
    def has_penalty(self) -> bool:
        return self.repetition_penalty not in (None, 1)

    @property
    def is_lossless(self) -> bool:
        """Whether the output follows the target's distribution."""
        return self.delta == 0 and self.rule in LOSSLESS_RULES

    @property
    def is_comparable(self) -> bool:
        """Whether runs with different drafts, or with none, return the same tokens."""
        return self.is_greedy or self.rule in COMPARABLE_RULES

    def override(self, overrides: Mapping[str, Any]) -> GenerationOptions:
        """Return these options with some values replaced. Raises `InputError` for unknown names or invalid values."""
        for name in overrides:
            if name not in option_specs():
                raise UnknownOption("unknown option", str(name), suggested_option(name, option_specs()))
        changed = {}
        for name, value in overrides.items():
            current = getattr(self, name)
            if type(value) is not type(current) or value != current:
                changed[name] = value
        return replace(self, **changed) if changed else self

    def override_for_row(self, overrides: Mapping[str, Any]) -> GenerationOptions:
        """Like `override`, but for one row of a batch. Raises `InputError` for options that all rows must share."""
        for name in overrides:
            if name in option_specs() and not option_specs()[name].per_row:
                raise InputError("is the same for all rows of a batch", name, "give it for all of them")
        return self.override(overrides)

    def with_values(self, **values: Any) -> GenerationOptions:
        """Return a copy with some values replaced. The new values are not checked."""
        changed = copy(self)
        for name, value in values.items():
            object.__setattr__(changed, name, value)
        return changed

    def require_effect(self, names: Iterable[str]) -> None:
        """Raise `InputError` if one of these options has no effect. `drafter` must not be None."""
        for name in names:
            if getattr(self, name) != option_specs()[name].default and (reason := self._why_without_effect(name)):
                raise InputError(Message("has no effect {reason}", reason=reason), name, "leave one of them out")

    def _why_without_effect(self, name: str) -> str | Message:
        """Return the reason to state after "has no effect", or "" if the option has an effect."""
        marks = option_specs()[name].marks
        if BEAMS_ONLY in marks and self.num_beams == 1:
            return Message("with {num_beams} 1")
        if SAMPLES_ONLY in marks and self.is_greedy:
            return Message("at {temperature} 0")
        if name in ("num_draft_tokens", "delta") and self.drafter == "none":
            is_off = name == "num_draft_tokens" and self.num_draft_tokens == 0
            return "" if is_off else Message("with {drafter} none")
        if name in ("drafter", "delta") and self.num_draft_tokens == 0 and self.drafter != "none":
            return Message("with {num_draft_tokens} 0")
        if name == "draft_text":
            if self.num_draft_tokens == 0:
                return Message("with {num_draft_tokens} 0")
            if not isinstance(self.drafter, str):  # a `BatchDrafter` may read `RequestView.draft_texts`
                return "" if hasattr(self.drafter, "kind_and_limit") else Message("with a {drafter} of your own")
            if not self.follows_texts:
                others = ", ".join(name for name, facts in DRAFTERS.items() if facts.uses_texts)
                return Message("with {drafter} {chosen}, only with {others}", chosen=self.drafter, others=others)
        if name == "max_ngram_size" and isinstance(self.drafter, str) and not self.looks_up_ngrams:
            others = " and ".join(name for name, facts in DRAFTERS.items() if facts.uses_ngrams)
            return Message("with {drafter} {chosen}, only with {others}", chosen=self.drafter, others=others)
        return ""


def option_specs() -> Mapping[str, OptionSpec]:
    """Return all options by name, in declaration order."""
    return specs_of(GenerationOptions)


def shows_options(function: Callable[P, R], options: Mapping[str, OptionSpec] | None = None) -> Callable[P, R]:
    """Make `help()` list each option with its type and default instead of **options. Default: `option_specs()`."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    leading = [each for each in own if each.kind is not Parameter.KEYWORD_ONLY]
    keywords = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=spec.default, annotation=spec.annotation)
        for name, spec in (option_specs() if options is None else options).items()
    ]
    parameters = [*leading, *keywords, *own[len(leading) :]]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def validate_fields(options: Any) -> None:
    """Convert the values in a frozen dataclass of options to plain Python objects. A default of None stays None.

    Raises:
        InputError: A value is not accepted. The error names the option.
    """
    cls: type = type(options)
    for name, spec in specs_of(cls).items():
        value = getattr(options, name)
        if value is not None or spec.default is not None:
            object.__setattr__(options, name, validate(name, spec.type, value))


def validate(name: str, type_: Value, value: Any) -> Any:
    """Return the value as a plain Python object. Raises an `InputError` that names the option."""
    try:
        return type_.accept(value)
    except (ValueError, TypeError):
        raise InputError(refusal(type_, value), name) from None


def refusal(type_: Value, value: Any) -> str:
    """Return the reason why `type_` does not accept a value, as text that follows the option's name."""
    return f"must be {type_.expected}, not {short_repr(value)}"


def short_repr(value: Any) -> str:
    """Return `repr(value)`, shortened to 60 characters unless the value is a URL. Booleans are written as in JSON."""
    try:
        text = repr(value).lower() if isinstance(value, bool) else repr(value)
    except Exception:  # for example, Python does not convert an integer with thousands of digits
        text = f"that {type(value).__name__}"
    return text if len(text) <= 60 or is_address(value) else f"{text[:57]}..."


def is_address(value: Any) -> bool:
    """Whether a value is a URL rather than a path or other text."""
    return isinstance(value, str) and re.match(r"[a-z][a-z0-9+.-]+://\S+$", value, re.IGNORECASE) is not None


def suggested_option(name: str, known: Collection[str]) -> Message:
    """Return a suggestion for an unknown option: the known options that may be meant, or all known options."""
    meant = meant_options(name, known) if name in OPTIONS_BY_OTHER_NAME else similar_names(str(name), known, 1)
    if meant:
        return Message("did you mean {names}?", names=listed(meant))
    return Message("there are {names}", names=listed(known))


def meant_options(name: str, known: Collection[str]) -> list[str]:
    """Return the known options that another library or an earlier version calls `name`."""
    return [each for each in OPTIONS_BY_OTHER_NAME.get(name, ()) if each in known]


def listed(names: Iterable[str]) -> Message:
    """Return the option names, separated by commas."""
    return joined(", ", map(Name, names))
