"""Options as keywords of functions, for type checkers, editors and `help()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, ParamSpec, TypedDict, TypeVar

from .options import option_specs
from .values import OptionSpec

P = ParamSpec("P")
R = TypeVar("R")


class OptionKeywords(TypedDict, total=False):
    """The fields of `GenerationOptions`, for `**options: Unpack[OptionKeywords]` (PEP 692)."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    min_tokens: int | None
    seed: int
    max_tokens: int
    src_lang: str | None
    tgt_lang: str | None
    stop: Sequence[str]
    eos_token_ids: Sequence[int]
    decoder_prefix: str | Sequence[int]
    num_beams: int
    length_penalty: float | None
    early_stopping: bool | str | None
    num_return_sequences: int
    drafter: str | Any | None
    num_draft_tokens: int | str | Any
    acceptance: str | None
    delta: float
    max_ngram_size: int
    strict: bool | None
    allow_long_prompt: bool
    logprobs: bool
    timed: bool


def shows(options: Mapping[str, OptionSpec]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let `help()` list these options, with their types and defaults, in place of **options of a function."""
    keywords = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=spec.default, annotation=spec.annotation)
        for name, spec in options.items()
    ]

    def change(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        leading = [each for each in own if each.kind is not Parameter.KEYWORD_ONLY]
        parameters = [*leading, *keywords, *own[len(leading) :]]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return change


shows_options = shows(option_specs())
