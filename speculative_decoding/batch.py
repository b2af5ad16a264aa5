"""Many prompts, one result for each. This version decodes them one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from .errors import InputError
from .generate import GenerationResult, generate
from .models.base import EncoderDecoder
from .sampling import SamplingParams
from .tokenizer import Tokenizer

SAMPLING = frozenset(each.name for each in fields(SamplingParams))


@dataclass(frozen=True)
class BatchResult:
    """index: the prompt's position in the input, from 0. error: one line, instead of a result."""

    index: int
    result: GenerationResult | None
    error: str | None


def batch_generate(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    prompts: Iterable[str | Mapping[str, Any]],
    *,
    slots: int = 8,
    max_memory_gb: float | None = None,
    **options: Any,
) -> Iterator[BatchResult]:
    """Yield the results as prompts finish. `prompts` is consumed only as far as there are slots for it.

    prompts: each a text, or a mapping with "prompt" and options of its own: those of `generate`, and the fields of
        `SamplingParams` by their names.
    options: those of `generate`.
    """
    if slots < 1:
        raise InputError(f"slots must be >= 1, not {slots}")
    if max_memory_gb is not None:
        raise InputError(
            f"max_memory_gb {max_memory_gb:g}: prompts are decoded one at a time, so there is nothing to limit"
        )
    for index, row in enumerate(prompts):
        try:
            prompt, request = (row, options) if isinstance(row, str) else with_row(options, row)
            yield BatchResult(index, generate(model, tokenizer, prompt, **request), None)
        except InputError as error:
            yield BatchResult(index, None, str(error))


def with_row(options: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The prompt, and the options as the row changes them. May raise `InputError`."""
    own = {name: value for name, value in row.items() if name != "prompt"}
    sampling = {name: own.pop(name) for name in SAMPLING & own.keys()}
    base = options.get("sampling") or SamplingParams()
    return row["prompt"], {**options, **own, "sampling": replace(base, **sampling)}
