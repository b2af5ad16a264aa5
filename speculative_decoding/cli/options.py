"""Flags made from `GenerationOptions`: their names, types, limits, help and defaults are its own."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import InputError
from ..sampling.options import abouts, default
from ..sampling.values import Number, Several, Switch, Text, Value
from .parser import flag_name, word

GROUPS = {
    "drafts": ("drafter", "num_draft", "confidence_threshold", "max_ngram_size", "min_ngram_size"),
    "decoding": (
        *("acceptance", "delta", "max_tokens", "stop", "prefix", "eos_token_ids", "strict", "allow_long_prompt"),
    ),
    "sampling": ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"),
}
OTHER_NAMES = {"prefix": "output_prefix", "eos_token_ids": "eos_token_id"}  # of flags whose field is named otherwise
SHORT = {"max_tokens": "-m"}
DEFAULT_DRAFTER = "model if there is a draft model, else none"


def flag(name: str) -> str:
    """The flag for a field."""
    return flag_name(OTHER_NAMES.get(name, name))


def add_options(parser: argparse.ArgumentParser, lists: Collection[str] = ()) -> None:
    """A flag for each option; one that is not given leaves no value. lists: options that take several, to try all."""
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            flags = [flag(name), *([SHORT[name]] if name in SHORT else [])]
            value, usual = abouts()[name].value, DEFAULT_DRAFTER if name == "drafter" else default(name)
            shown = "" if usual is False or usual in ("", ()) else f" (default: {usual})"
            kind: dict[str, Any] = {"type": word(value), "metavar": metavar(name, value)}
            if isinstance(value, Switch):
                kind = {"action": "store_true"}
            elif isinstance(value, Several):
                kind["action"] = "append"
            elif name in lists:
                kind["nargs"] = "+"
            group.add_argument(*flags, dest=name, default=argparse.SUPPRESS, help=abouts()[name].help + shown, **kind)


def metavar(name: str, value: Value) -> str:
    inner = value.one if isinstance(value, Several) else value
    if isinstance(inner, Text) and inner.choices:
        return f"{{{','.join(inner.choices)}}}"
    if name in ("drafter", "prefix"):
        return "NAME" if name == "drafter" else "TEXT"
    return "TEXT" if isinstance(inner, Text) else "X" if isinstance(inner, Number) else "N"


def given_options(chosen: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, by their fields' names."""
    return {name: value for name, value in vars(chosen).items() if name in abouts()}


@contextmanager
def in_words_of_flags() -> Iterator[None]:
    """An `InputError` from within names options as the command line does."""
    try:
        yield
    except InputError as error:
        raise InputError(re.sub(rf"\b({'|'.join(abouts())})\b", lambda name: flag(name[0]), str(error))) from error
