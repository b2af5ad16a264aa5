"""Functions whose keywords are the fields of a dataclass, for editors, `help()` and callers alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_type_hints, overload

from .options import current_names

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
R = TypeVar("R")


class takes_keywords_of(Generic[P]):  # reads as what it does, where it decorates
    """`@takes_keywords_of(Options)` in front of f(a, b, given) makes f(a, b, **keywords), where the keywords are those
    of `Options(...)` and `given` holds the ones that the caller gave, unchecked. Type checkers and editors see each
    with its type and default, by `ParamSpec` (PEP 612); `help()` sees them in the signature.
    """

    def __init__(self, options: Callable[P, Any]) -> None:
        self._options = options

    @overload
    def __call__(self, function: Callable[[A, B, Mapping[str, Any]], R]) -> Callable[Concatenate[A, B, P], R]: ...

    @overload
    def __call__(self, function: Callable[[A, B, C, Mapping[str, Any]], R]) -> Callable[Concatenate[A, B, C, P], R]: ...

    def __call__(self, function: Callable[..., R]) -> Callable[..., R]:
        *leading, _ = inspect.signature(function).parameters.values()
        front = inspect.Signature(leading)

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> R:
            by_name = {name: keywords.pop(name) for name in front.parameters if name in keywords}
            return function(*front.bind(*arguments, **by_name).args, current_names(keywords))

        own = keyword_parameters(self._options)
        returned = inspect.signature(function).return_annotation
        call.__signature__ = inspect.Signature([*leading, *own], return_annotation=returned)  # type: ignore[attr-defined]
        return call


def keyword_parameters(options: Any) -> list[inspect.Parameter]:
    """One for each field of a dataclass, with its type and default."""
    hints = get_type_hints(options)  # without what `Annotated` adds
    return [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(options)
    ]
