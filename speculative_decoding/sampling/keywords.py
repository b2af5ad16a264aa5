"""Options as keywords of functions, for type checkers, editors and `help()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, ParamSpec, TypedDict, TypeVar, get_type_hints

from .options import GenerationOptions

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


@cache
def keyword_parameters(options: type[Any]) -> Mapping[str, inspect.Parameter]:
    """The fields of a dataclass of options, as keyword parameters with their types and defaults."""
    types = get_type_hints(options)
    return {
        each.name: inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=types[each.name]
        )
        for each in fields(options)
    }


def shows_options(function: Callable[P, R]) -> Callable[P, R]:
    """Let `help()` list every option, with its type and default, in place of **options."""
    signature = inspect.signature(function)
    leading, own = [], []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            own.append(parameter)
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            leading.append(parameter)
    options = keyword_parameters(GenerationOptions).values()
    function.__signature__ = signature.replace(parameters=[*leading, *options, *own])  # type: ignore[attr-defined]
    return function
